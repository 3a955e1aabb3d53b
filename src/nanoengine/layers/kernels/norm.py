"""RMSNorm with what stands in front of it, in one pass over the row: the residual addition, and before that the sum
of a product that arrives in pieces (medium_linear.py)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .common import launch_options, power_of_two, wait_for_inputs


@triton.jit
def _add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    new_residual_ptr,
    x_stride,
    residual_stride,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    PIECES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row. The sum is rounded to the model's type first: it IS the new residual."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    dtype = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    for piece in tl.static_range(1, PIECES):
        x += tl.load(x_ptr + (piece * tl.num_programs(0) + row) * x_stride + column, mask=inside, other=0.0)
    if PIECES > 1:
        x = x.to(dtype).to(tl.float32)  # the product, as the model rounds it
    if ADD:
        residual = tl.load(residual_ptr + row * residual_stride + column, mask=inside, other=0.0)
        summed = (x + residual.to(tl.float32)).to(dtype)
        tl.store(new_residual_ptr + row * WIDTH + column, summed, mask=inside)
        x = summed.to(tl.float32)
    normed = (x * tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + eps)).to(dtype).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, normed * weight, mask=inside)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, *, pdl: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [n, hidden], residual [n, hidden] or None -> (RMSNorm(x + residual), x + residual).

    With a residual, x may come as float32 [pieces, n, hidden], whose sum over pieces it is.

    Rounds where transformers' Qwen3RMSNorm does: normalise in fp32, round, multiply by the weight, round. Without a
    residual the second result is x itself, unread and uncopied.
    """
    n, width = x.shape[-2:]
    if x.stride(-1) != 1 or (residual is not None and residual.stride(1) != 1):
        raise ValueError("x and residual need contiguous rows")
    if x.dim() == 3 and (residual is None or not x.is_contiguous()):
        raise ValueError("x in pieces must be contiguous and needs a residual")
    out = torch.empty(n, width, dtype=weight.dtype, device=x.device)
    summed = x if residual is None else torch.empty_like(out)
    if n:
        added = x if residual is None else residual
        _add_rms_norm_kernel[(n,)](
            x,
            added,
            weight,
            out,
            summed,
            x.stride(-2),
            added.stride(0),
            eps,
            WIDTH=width,
            BLOCK=power_of_two(width),
            ADD=residual is not None,
            PIECES=len(x) if x.dim() == 3 else 1,
            **launch_options(pdl, x.device, num_warps=4 if width <= 2048 else 8),
        )
    return out, summed
