"""Causal attention of many query positions (prefill): variable lengths, paged or contiguous keys, GQA.

The same online softmax as decode (see attention_decode.py), with a tile of BLOCK_M query positions in place of the
packed heads. Query i of a sequence with Lq queries and Lk keys is position Lk - Lq + i and sees keys up to itself:
a prefix found in the cache makes Lk larger than Lq. Keys that every query of the tile sees need no mask, so the
loop runs in two parts, unmasked up to the diagonal and masked across it; keys past the diagonal are never read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .common import LOG2E, check_head_dim, check_page_size


@dataclass(frozen=True)
class PrefillTunables:
    block_m: int = 128  # query positions a program
    block_n: int = 64  # keys a tile
    num_warps: int = 8
    num_stages: int = 3  # of the contiguous variant; a page lookup in front of every load takes two more

    @classmethod
    def for_dtype(cls, dtype: torch.dtype) -> PrefillTunables:
        """float32 tiles are twice as large and have no tensor cores to feed."""
        if dtype == torch.float32:
            return cls(block_m=32, block_n=32, num_warps=4, num_stages=2)
        return cls()


@triton.jit
def _attend_tiles(
    q,
    m,
    total,
    acc,
    k_ptr,
    v_ptr,
    table_ptr,
    k_start,
    kv_head,
    first_key,
    last_key,
    q_position,
    scale_log2,
    k_stride,
    v_stride,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Online softmax of q [M, D] over keys first_key..last_key; PAGE 0 means contiguous keys from row k_start."""
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, D)
    for first in tl.range(first_key, last_key, BLOCK_N):
        keys = first + n
        inside = keys < last_key
        if PAGE == 0:
            slots = (k_start + keys).to(tl.int64)
        elif PAGE % BLOCK_N == 0:  # the tile lies in one page
            page = tl.load(table_ptr + first // PAGE).to(tl.int64)
            slots = page * PAGE + first % PAGE + n
        else:
            page = tl.load(table_ptr + keys // PAGE, mask=inside, other=0).to(tl.int64)
            slots = page * PAGE + keys % PAGE
        column = kv_head * D + d[None, :]
        k_at = k_ptr + slots[:, None] * k_stride + column
        v_at = v_ptr + slots[:, None] * v_stride + column
        k = tl.load(k_at, mask=inside[:, None], other=0.0) if MASKED else tl.load(k_at)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2  # [M, BLOCK_N]
        if MASKED:
            scores = tl.where(keys[None, :] <= q_position[:, None], scores, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, axis=1))
        shrink = tl.exp2(m - m_new)
        p = tl.exp2(scores - m_new[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        v = tl.load(v_at, mask=inside[:, None], other=0.0) if MASKED else tl.load(v_at)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    return m, total, acc


@triton.jit
def _prefill_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    cu_q_ptr,
    cu_k_ptr,
    out_ptr,
    q_stride,
    k_stride,
    v_stride,
    table_stride,
    scale_log2,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Grid (query tiles, H, sequences); the last tiles see most keys, so they start first."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    q_start = tl.load(cu_q_ptr + sequence)
    q_len = tl.load(cu_q_ptr + sequence + 1) - q_start
    k_start = tl.load(cu_k_ptr + sequence)
    k_len = tl.load(cu_k_ptr + sequence + 1) - k_start
    first_query = tile * BLOCK_M
    if first_query < q_len:
        i = first_query + tl.arange(0, BLOCK_M)
        d = tl.arange(0, D)
        rows = (q_start + i).to(tl.int64)
        inside = (i < q_len)[:, None]
        q = tl.load(q_ptr + rows[:, None] * q_stride + head * D + d[None, :], mask=inside, other=0.0)
        history = k_len - q_len  # keys that precede query 0
        diagonal = (history + first_query + 1) // BLOCK_N * BLOCK_N  # keys before it are seen by the whole tile
        last_key = tl.minimum(history + first_query + BLOCK_M, k_len)
        kv_head = head // (H // KV)
        m = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, D], tl.float32)
        table_row = table_ptr + sequence.to(tl.int64) * table_stride
        m, total, acc = _attend_tiles(
            q,
            m,
            total,
            acc,
            k_ptr,
            v_ptr,
            table_row,
            k_start,
            kv_head,
            0,
            diagonal,
            history + i,
            scale_log2,
            k_stride,
            v_stride,
            D,
            PAGE,
            BLOCK_N,
            False,
        )
        m, total, acc = _attend_tiles(
            q,
            m,
            total,
            acc,
            k_ptr,
            v_ptr,
            table_row,
            k_start,
            kv_head,
            diagonal,
            last_key,
            history + i,
            scale_log2,
            k_stride,
            v_stride,
            D,
            PAGE,
            BLOCK_N,
            True,
        )
        out = acc / total[:, None]
        tl.store(out_ptr + (rows[:, None] * H + head) * D + d[None, :], out, mask=inside)


def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    block_tables: torch.Tensor | None,
    max_seqlen_q: int,
    scale: float,
    page_size: int,
    tunables: PrefillTunables | None,
) -> torch.Tensor:
    total, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[-2]
    check_head_dim(head_dim)
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot be shared out over {num_kv_heads} KV heads")
    if any(x.stride(-1) != 1 or x.stride(-2) != head_dim for x in (k, v)):
        raise ValueError(f"k and v need contiguous heads, got strides {k.stride()} and {v.stride()}")
    if tunables is None:
        tunables = PrefillTunables.for_dtype(q.dtype)
    out = torch.empty(total, num_heads, head_dim, dtype=q.dtype, device=q.device)
    sequences = cu_q.shape[0] - 1
    if total == 0:
        return out
    table = cu_q if block_tables is None else block_tables
    _prefill_attention_kernel[(-(-max_seqlen_q // tunables.block_m), num_heads, sequences)](
        q,
        k,
        v,
        table,
        cu_q,
        cu_k,
        out,
        q.stride(0),
        k.stride(-3),
        v.stride(-3),
        table.stride(0),
        scale * LOG2E,
        H=num_heads,
        KV=num_kv_heads,
        D=head_dim,
        PAGE=page_size,
        BLOCK_M=tunables.block_m,
        BLOCK_N=tunables.block_n,
        num_warps=tunables.num_warps,
        num_stages=tunables.num_stages + (2 if page_size else 0),
    )
    return out


def paged_prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    block_tables: torch.Tensor,
    max_seqlen_q: int,
    scale: float,
    *,
    tunables: PrefillTunables | None = None,
) -> torch.Tensor:
    """q [total, H, D] against pages [blocks, page, KV, D] -> [total, H, D]; sequence s has the queries
    cu_seqlens_q[s] .. cu_seqlens_q[s + 1] and cu_seqlens_k[s + 1] - cu_seqlens_k[s] keys, this step's included."""
    page_size = k_cache.shape[1]
    check_page_size(page_size)
    return _launch(
        q, k_cache, v_cache, cu_seqlens_q, cu_seqlens_k, block_tables, max_seqlen_q, scale, page_size, tunables
    )


def prefill_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    scale: float,
    *,
    tunables: PrefillTunables | None = None,
) -> torch.Tensor:
    """The variant without a cache: k, v [total, KV, D] hold exactly the keys of this step (Lq == Lk).

    Their rows may lie apart, as in a view of the QKV projection.
    """
    return _launch(q, k, v, cu_seqlens, cu_seqlens, None, max_seqlen, scale, 0, tunables)
