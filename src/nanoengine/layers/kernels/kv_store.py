"""Scatter the keys and values of this step's tokens into the paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .common import launch_options, power_of_two, wait_for_inputs


@triton.jit
def _store_kv_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_ptr,
    k_stride,
    v_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program copies one token: kv_heads * head_dim contiguous values of K and of V."""
    token = tl.program_id(0)
    wait_for_inputs(PDL)
    slot = tl.load(slot_ptr + token).to(tl.int64)
    if slot >= 0:  # a padded row has slot -1 and must never write
        column = tl.arange(0, BLOCK)
        inside = column < WIDTH
        k = tl.load(k_ptr + token.to(tl.int64) * k_stride + column, mask=inside)
        v = tl.load(v_ptr + token.to(tl.int64) * v_stride + column, mask=inside)
        tl.store(k_cache_ptr + slot * WIDTH + column, k, mask=inside)
        tl.store(v_cache_ptr + slot * WIDTH + column, v, mask=inside)


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """Write k, v [n, kv_heads, head_dim] to the slots of the cache [blocks, page, kv_heads, head_dim].

    `slot_mapping` [n] int32 or int64 numbers slots over the whole cache; -1 writes nothing. k and v may be views
    into a larger row (the QKV projection): only their last two dimensions must be contiguous.
    """
    n, kv_heads, head_dim = k.shape
    width = kv_heads * head_dim
    if k.stride(1) != head_dim or k.stride(2) != 1 or v.stride(1) != head_dim or v.stride(2) != 1:
        raise ValueError(f"k and v need contiguous heads, got strides {k.stride()} and {v.stride()}")
    if n == 0:
        return
    _store_kv_kernel[(n,)](
        k,
        v,
        k_cache,
        v_cache,
        slot_mapping,
        k.stride(0),
        v.stride(0),
        WIDTH=width,
        BLOCK=power_of_two(width),
        **launch_options(pdl, k.device, num_warps=4),
    )
