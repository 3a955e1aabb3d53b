"""Per-head RMSNorm, rotary embedding and KV store, fused: what Qwen3 does between the QKV projection and attention."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .common import check_head_dim, launch_options, power_of_two, wait_for_inputs


@triton.jit
def norm_and_rotate(head_ptr, inside, weight_ptr, cos_sin_ptr, eps, D: tl.constexpr):
    """Load heads [R, D] at `head_ptr` [R, 1], RMS-normalise each, rotate by its position's angles; fp32 [R, D].

    NeoX rotation pairs element d with d + D/2:  out[d] = x[d] cos - x[d + D/2] sin  in the first half and
    out[d] = x[d] cos + x[d - D/2] sin  in the second. Loading every row twice, once shifted by half a head, gives
    each element its partner without moving data between threads.
    Rounding follows the model: normalise in fp32, round to the model's type, multiply by the weight, round again.
    """
    dtype = head_ptr.dtype.element_ty
    d = tl.arange(0, D)
    partner = (d + D // 2) % D
    x = tl.load(head_ptr + d[None, :], mask=inside, other=0.0).to(tl.float32)
    x_partner = tl.load(head_ptr + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
    weight = tl.load(weight_ptr + d).to(tl.float32)[None, :]
    weight_partner = tl.load(weight_ptr + partner).to(tl.float32)[None, :]
    x = ((x * inverse_rms).to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)
    x_partner = ((x_partner * inverse_rms).to(dtype).to(tl.float32) * weight_partner).to(dtype).to(tl.float32)
    cos = tl.load(cos_sin_ptr + d % (D // 2)).to(tl.float32)[None, :]
    sin = tl.load(cos_sin_ptr + D // 2 + d % (D // 2)).to(tl.float32)[None, :]
    return x * cos + x_partner * tl.where(d < D // 2, -sin, sin)


@triton.jit
def _qk_norm_rope_store_kernel(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_sin_ptr,
    position_ptr,
    slot_ptr,
    q_ptr,
    k_ptr,
    k_cache_ptr,
    v_cache_ptr,
    qkv_stride,
    eps,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    G_PAD: tl.constexpr,
    STORE: tl.constexpr,
    KEEP_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: one KV head of one token, with the G = H / KV query heads that read it."""
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    G: tl.constexpr = H // KV
    d = tl.arange(0, D)
    wait_for_inputs(PDL)
    row_ptr = qkv_ptr + token * qkv_stride  # [H * D of Q | KV * D of K | KV * D of V]
    angles_ptr = cos_sin_ptr + tl.load(position_ptr + token).to(tl.int64) * D

    group = tl.arange(0, G_PAD)[:, None]
    head = kv_head * G + group
    q = norm_and_rotate(row_ptr + head * D, group < G, q_weight_ptr, angles_ptr, eps, D)
    tl.store(q_ptr + (token * H + head) * D + d[None, :], q, mask=group < G)

    one = tl.arange(0, 1)[:, None]
    k = norm_and_rotate(row_ptr + (H + kv_head + one) * D, one < 1, k_weight_ptr, angles_ptr, eps, D)
    if KEEP_K:
        tl.store(k_ptr + (token * KV + kv_head + one) * D + d[None, :], k)
    if STORE:
        slot = tl.load(slot_ptr + token).to(tl.int64)
        if slot >= 0:
            cached = (slot * KV + kv_head) * D + d
            tl.store(k_cache_ptr + cached[None, :], k)
            tl.store(v_cache_ptr + cached, tl.load(row_ptr + (H + KV + kv_head) * D + d))


def qk_norm_rope_store(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor | None,
    k_cache: torch.Tensor | None,
    v_cache: torch.Tensor | None,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    keep_k: bool = True,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """qkv [n, (H + 2 KV) * D] -> q [n, H, D], k [n, KV, D] (None unless `keep_k`) and v [n, KV, D], a view of qkv.

    Rotated K and plain V are also written to the cache [blocks, page, KV, D] at `slot_mapping` [n] (-1: not
    written); without a cache (None) nothing is stored. `cos_sin_cache` [max_position, D] float32 holds D/2 cosines
    and D/2 sines a row; `positions` [n] int32 or int64. Decode reads K from the cache and passes keep_k=False.
    """
    check_head_dim(head_dim)
    n, width = qkv.shape
    if width != (num_heads + 2 * num_kv_heads) * head_dim or qkv.stride(1) != 1:
        raise ValueError(
            f"qkv is {tuple(qkv.shape)}; {num_heads} + 2 x {num_kv_heads} heads of {head_dim} need "
            f"{(num_heads + 2 * num_kv_heads) * head_dim} contiguous columns"
        )
    q = torch.empty(n, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    k = torch.empty(n, num_kv_heads, head_dim, dtype=qkv.dtype, device=qkv.device) if keep_k else None
    v = qkv[:, (num_heads + num_kv_heads) * head_dim :].view(n, num_kv_heads, head_dim)
    store = k_cache is not None and v_cache is not None and slot_mapping is not None
    if n:
        _qk_norm_rope_store_kernel[(n, num_kv_heads)](
            qkv,
            q_weight,
            k_weight,
            cos_sin_cache,
            positions,
            slot_mapping if store else positions,
            q,
            k if keep_k else q,
            k_cache if store else q,
            v_cache if store else q,
            qkv.stride(0),
            eps,
            H=num_heads,
            KV=num_kv_heads,
            D=head_dim,
            G_PAD=power_of_two(num_heads // num_kv_heads),
            STORE=store,
            KEEP_K=keep_k,
            **launch_options(pdl, qkv.device, num_warps=1),
        )
    return q, k, v
