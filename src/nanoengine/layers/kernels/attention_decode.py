"""Paged decode attention: one query position a sequence, split over its keys (flash-decoding), GQA heads packed.

Three ideas, each met once below:

- Online softmax. Keys are read in tiles; the running maximum m, the running sum `total` of exp(score - m) and the
  unnormalised output acc are enough to continue: when a tile raises m, old total and acc shrink by exp(m_old - m_new).
- GQA packing. G = H / KV query heads read the same K and V. They form the rows of ONE small matrix product (padded
  to 16 rows, the tensor cores' height), so that K and V leave memory once and not G times.
- Split-KV. One program for each (KV head, sequence) would leave most of the GPU idle at small batch, and one long
  sequence would hold up all others. Each sequence is cut into at most `splits` equal pieces; every piece yields its
  own normalised output and log-sum-exp, and a second kernel merges them:  out = sum_s w_s out_s  with
  w_s = exp(lse_s - max) / sum exp(lse - max).  `splits` follows from the shape alone, so the grid can be captured
  in a CUDA graph; pieces past the end of a short sequence return at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .common import LOG2E, check_head_dim, check_page_size, launch_options, power_of_two, wait_for_inputs


@dataclass(frozen=True)
class DecodeTunables:
    """Sizes that trade latency, occupancy and merge cost; the defaults were chosen on an H200 by bench_kernels."""

    block_n: int = 64  # keys a tile; K and V tiles of 64 x 128 bf16 are 16 KB each
    num_warps: int = 4
    num_stages: int = 5  # two tiles of K and V in flight: each level of indirection (page, then key) takes two
    min_chunk: int = 128  # a piece never holds fewer keys (a multiple of block_n)
    min_splits: int = 1  # when the batch alone fills the GPU, a merge costs more than even pieces gain
    max_splits: int = 16
    programs_per_sm: int = 10  # enough pieces that one long sequence does not finish last alone

    def __post_init__(self) -> None:
        if self.min_chunk % self.block_n:
            raise ValueError(f"min_chunk {self.min_chunk} must be a multiple of block_n {self.block_n}")

    def splits(self, batch: int, num_kv_heads: int, num_sms: int) -> int:
        """How many pieces each sequence of this batch is cut into, at most; depends on shapes only."""
        wanted = -(-num_sms * self.programs_per_sm // (batch * num_kv_heads))
        return min(max(power_of_two(wanted), self.min_splits), self.max_splits)


DEFAULT_TUNABLES = DecodeTunables()


@dataclass(frozen=True)
class DecodeWorkspace:
    """Device memory for the pieces' partial results, allocated once and reused by every layer and step."""

    out: torch.Tensor  # float32, holds [n, H, splits, D]
    lse: torch.Tensor  # float32, holds [n, H, splits], base-2 log-sum-exp
    num_sms: int
    tunables: DecodeTunables = DEFAULT_TUNABLES

    @classmethod
    def allocate(
        cls,
        max_batch: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device,
        tunables: DecodeTunables = DEFAULT_TUNABLES,
    ) -> DecodeWorkspace:
        """Enough for every batch size up to `max_batch`."""
        on_gpu = device.type == "cuda"
        num_sms = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 4
        pieces = max(n * tunables.splits(n, num_kv_heads, num_sms) for n in range(1, max_batch + 1))
        rows = pieces * num_heads
        return cls(
            out=torch.empty(rows * head_dim, dtype=torch.float32, device=device),
            lse=torch.empty(rows, dtype=torch.float32, device=device),
            num_sms=num_sms,
            tunables=tunables,
        )

    def splits(self, batch: int, num_kv_heads: int) -> int:
        return self.tunables.splits(batch, num_kv_heads, self.num_sms)


@triton.jit
def chunk_size(length, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr, MIN_CHUNK: tl.constexpr):
    """Keys a piece: an equal share of the sequence in whole tiles, so that a tile never straddles two pieces."""
    return tl.maximum(tl.cdiv(tl.cdiv(length, SPLITS), BLOCK_N) * BLOCK_N, MIN_CHUNK)


@triton.jit
def attend(
    q,
    m,
    total,
    acc,
    k_cache_ptr,
    v_cache_ptr,
    table_ptr,
    kv_head,
    start,
    end,
    scale_log2,
    KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Continue the online softmax of q [M, D] over cached keys start..end; m, l [M], acc [M, D] in fp32."""
    ROW: tl.constexpr = KV * D  # values between one slot and the next
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, D)
    tile = n[:, None] * ROW + (kv_head * D + d)[None, :]  # [BLOCK_N, D] offsets inside consecutive slots
    for first in tl.range(start, end, BLOCK_N):
        inside = first + n < end
        if PAGE % BLOCK_N == 0:  # the tile lies in one page: one table entry, consecutive slots
            page = tl.load(table_ptr + first // PAGE).to(tl.int64)
            offsets = (page * PAGE + first % PAGE) * ROW + tile
        else:  # small pages: every key looks up its own page
            keys = first + n
            page = tl.load(table_ptr + keys // PAGE, mask=inside, other=0).to(tl.int64)
            offsets = (page * PAGE + keys % PAGE)[:, None] * ROW + (kv_head * D + d)[None, :]
        k = tl.load(k_cache_ptr + offsets, mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2  # [M, BLOCK_N]
        scores = tl.where(inside[None, :], scores, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, axis=1))
        shrink = tl.exp2(m - m_new)
        p = tl.exp2(scores - m_new[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        v = tl.load(v_cache_ptr + offsets, mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    return m, total, acc


@triton.jit
def store_piece(
    m,
    total,
    acc,
    out_ptr,
    part_ptr,
    lse_ptr,
    row,
    split,
    head,
    inside,
    H: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One piece's normalised output and log-sum-exp; with a single split that is already the answer."""
    d = tl.arange(0, D)[None, :]
    out = acc / total[:, None]
    if SPLITS == 1:
        tl.store(out_ptr + (row * H + head[:, None]) * D + d, out, mask=inside[:, None])
    else:
        piece = (row * H + head) * SPLITS + split
        tl.store(part_ptr + piece[:, None] * D + d, out, mask=inside[:, None])
        tl.store(lse_ptr + piece, m + tl.log2(total), mask=inside)


@triton.jit
def _split_attention_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    table_ptr,
    length_ptr,
    out_ptr,
    part_ptr,
    lse_ptr,
    table_stride,
    scale_log2,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    M: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (kv_heads, n, splits): KV heads are neighbours, because they read neighbouring bytes of a page."""
    kv_head = tl.program_id(0)
    row = tl.program_id(1)
    split = tl.program_id(2)
    G: tl.constexpr = H // KV
    group = tl.arange(0, M)
    head = kv_head * G + group
    d = tl.arange(0, D)
    wait_for_inputs(PDL)
    length = tl.load(length_ptr + row)
    chunk = chunk_size(length, SPLITS, BLOCK_N, MIN_CHUNK)
    start = split * chunk
    end = tl.minimum(start + chunk, length)
    if start < end:
        q = tl.load(q_ptr + (row * H + head[:, None]) * D + d[None, :], mask=(group < G)[:, None], other=0.0)
        m = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        acc = tl.zeros([M, D], tl.float32)
        table_row = table_ptr + row.to(tl.int64) * table_stride
        m, total, acc = attend(
            q, m, total, acc, k_cache_ptr, v_cache_ptr, table_row, kv_head, start, end, scale_log2, KV, D, PAGE, BLOCK_N
        )
        store_piece(m, total, acc, out_ptr, part_ptr, lse_ptr, row, split, head, group < G, H, D, SPLITS)
    elif SPLITS == 1:  # a padded row of a graph bucket: defined, and nothing was read
        zeros = tl.zeros([M, D], tl.float32)
        tl.store(out_ptr + (row * H + head[:, None]) * D + d[None, :], zeros, mask=(group < G)[:, None])


@triton.jit
def _merge_kernel(
    part_ptr,
    lse_ptr,
    length_ptr,
    out_ptr,
    H: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (H, n): weigh the pieces of one head by exp(lse); a padded row has no piece and becomes zeros."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    s = tl.arange(0, SPLITS_PAD)
    d = tl.arange(0, D)
    wait_for_inputs(PDL)
    length = tl.load(length_ptr + row)
    used = s * chunk_size(length, SPLITS, BLOCK_N, MIN_CHUNK) < length
    piece = (row * H + head) * SPLITS + s
    lse = tl.load(lse_ptr + piece, mask=used, other=-1.0e30)
    weight = tl.where(used, tl.exp2(lse - tl.max(lse, axis=0)), 0.0)
    part = tl.load(part_ptr + piece[:, None] * D + d[None, :], mask=used[:, None], other=0.0)
    out = tl.sum(part * weight[:, None], axis=0) / tl.maximum(tl.sum(weight, axis=0), 1.0e-30)
    tl.store(out_ptr + (row * H + head) * D + d, out)


def merge_splits(
    workspace: DecodeWorkspace, context_lens: torch.Tensor, out: torch.Tensor, num_kv_heads: int, *, pdl: bool = False
) -> torch.Tensor:
    """Second half of split-KV: fills and returns out [n, H, D] from the pieces that lie in the workspace."""
    n, num_heads, head_dim = out.shape
    splits, tunables = workspace.splits(n, num_kv_heads), workspace.tunables
    if splits > 1 and n:
        _merge_kernel[(num_heads, n)](
            workspace.out,
            workspace.lse,
            context_lens,
            out,
            H=num_heads,
            D=head_dim,
            SPLITS=splits,
            SPLITS_PAD=power_of_two(splits),
            BLOCK_N=tunables.block_n,
            MIN_CHUNK=tunables.min_chunk,
            **launch_options(pdl, context_lens.device, num_warps=1 if splits <= 8 else 4),
        )
    return out


def check_decode(k_cache: torch.Tensor, context_lens: torch.Tensor, num_heads: int, workspace: DecodeWorkspace) -> int:
    """Refuse what the kernels cannot do; returns the number of splits."""
    _, page_size, num_kv_heads, head_dim = k_cache.shape
    check_head_dim(head_dim)
    check_page_size(page_size)
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot be shared out over {num_kv_heads} KV heads")
    batch = context_lens.shape[0]
    splits = workspace.splits(max(batch, 1), num_kv_heads)
    if batch * num_heads * splits > workspace.lse.numel():
        raise ValueError(
            f"batch {batch} with {splits} splits needs {batch * num_heads * splits} partial rows, the workspace "
            f"holds {workspace.lse.numel()}; allocate it with a larger max_batch"
        )
    return splits


def paged_decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    workspace: DecodeWorkspace,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """q [n, H, D] against pages [blocks, page, KV, D] -> [n, H, D].

    `block_tables` [n, max_blocks] int32 may hold anything past a sequence's last block; `context_lens` [n] int32
    counts the keys including the newest; 0 marks a padded row, whose output is zeros.
    """
    n, num_heads, head_dim = q.shape
    splits = check_decode(k_cache, context_lens, num_heads, workspace)
    num_kv_heads, page_size, tunables = k_cache.shape[2], k_cache.shape[1], workspace.tunables
    out = torch.empty_like(q)
    if n == 0:
        return out
    _split_attention_kernel[(num_kv_heads, n, splits)](
        q,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        out,
        workspace.out,
        workspace.lse,
        block_tables.stride(0),
        scale * LOG2E,
        H=num_heads,
        KV=num_kv_heads,
        D=head_dim,
        PAGE=page_size,
        M=max(16, power_of_two(num_heads // num_kv_heads)),
        SPLITS=splits,
        BLOCK_N=tunables.block_n,
        MIN_CHUNK=tunables.min_chunk,
        **launch_options(pdl, context_lens.device, tunables.num_warps, tunables.num_stages),
    )
    return merge_splits(workspace, context_lens, out, num_kv_heads, pdl=pdl)
