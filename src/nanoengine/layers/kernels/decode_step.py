"""The attention half of a decode layer in one launch: QK-norm, RoPE, KV store and split attention.

It replaces `qk_norm_rope_store` followed by `paged_decode_attention` where launches cost more than bytes, that is at
small batch. The split-KV scheme, the workspace and the merge are attention_decode.py's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .attention_decode import DecodeWorkspace, attend, check_decode, chunk_size, store_piece
from .common import LOG2E, launch_options, power_of_two, wait_for_inputs
from .norm_rope import norm_and_rotate


@triton.jit
def _rope_store_attend_kernel(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_sin_ptr,
    position_ptr,
    slot_ptr,
    k_cache_ptr,
    v_cache_ptr,
    table_ptr,
    length_ptr,
    out_ptr,
    part_ptr,
    lse_ptr,
    qkv_stride,
    table_stride,
    eps,
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
    """`_split_attention_kernel` that makes Q itself and stores the new token.

    The piece that owns the last position does not read the new key back from the cache: it starts its online
    softmax from that single key (m = its score, total = 1, acc = its value), so no other program has to wait.
    """
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
        dtype = k_cache_ptr.dtype.element_ty
        row_ptr = qkv_ptr + row.to(tl.int64) * qkv_stride
        angles_ptr = cos_sin_ptr + tl.load(position_ptr + row).to(tl.int64) * D
        q = norm_and_rotate(row_ptr + head[:, None] * D, (group < G)[:, None], q_weight_ptr, angles_ptr, eps, D)
        q = q.to(dtype)
        m = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        acc = tl.zeros([M, D], tl.float32)
        if end == length:
            one = tl.arange(0, 1)[:, None]
            k = norm_and_rotate(row_ptr + (H + kv_head + one) * D, one < 1, k_weight_ptr, angles_ptr, eps, D)
            k = k.to(dtype)
            v = tl.load(row_ptr + (H + KV + kv_head) * D + d)
            m = tl.sum(q.to(tl.float32) * k.to(tl.float32), axis=1) * scale_log2
            total = tl.full([M], 1.0, tl.float32)
            acc = acc + v.to(tl.float32)[None, :]
            slot = tl.load(slot_ptr + row).to(tl.int64)
            if slot >= 0:
                cached = (slot * KV + kv_head) * D + d
                tl.store(k_cache_ptr + cached[None, :], k)
                tl.store(v_cache_ptr + cached, v)
        table_row = table_ptr + row.to(tl.int64) * table_stride
        m, total, acc = attend(
            q,
            m,
            total,
            acc,
            k_cache_ptr,
            v_cache_ptr,
            table_row,
            kv_head,
            start,
            tl.minimum(end, length - 1),
            scale_log2,
            KV,
            D,
            PAGE,
            BLOCK_N,
        )
        store_piece(m, total, acc, out_ptr, part_ptr, lse_ptr, row, split, head, group < G, H, D, SPLITS)
    elif SPLITS == 1:
        zeros = tl.zeros([M, D], tl.float32)
        tl.store(out_ptr + (row * H + head[:, None]) * D + d[None, :], zeros, mask=(group < G)[:, None])


def rope_store_attend(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    num_heads: int,
    workspace: DecodeWorkspace,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """QK-norm, RoPE, KV store and split attention of one decode step in one launch; qkv [n, (H + 2 KV) * D].

    Returns out [n, H, D]. With more than one split it is still EMPTY: the pieces lie in the workspace, and
    `merge_splits` completes them.
    """
    splits = check_decode(k_cache, context_lens, num_heads, workspace)
    n = qkv.shape[0]
    _, page_size, num_kv_heads, head_dim = k_cache.shape
    tunables = workspace.tunables
    out = torch.empty(n, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if n:
        _rope_store_attend_kernel[(num_kv_heads, n, splits)](
            qkv,
            q_weight,
            k_weight,
            cos_sin_cache,
            positions,
            slot_mapping,
            k_cache,
            v_cache,
            block_tables,
            context_lens,
            out,
            workspace.out,
            workspace.lse,
            qkv.stride(0),
            block_tables.stride(0),
            eps,
            scale * LOG2E,
            H=num_heads,
            KV=num_kv_heads,
            D=head_dim,
            PAGE=page_size,
            M=max(16, power_of_two(num_heads // num_kv_heads)),
            SPLITS=splits,
            BLOCK_N=tunables.block_n,
            MIN_CHUNK=tunables.min_chunk,
            **launch_options(pdl, qkv.device, tunables.num_warps, tunables.num_stages),
        )
    return out
