"""SwiGLU's elementwise half: silu(gate) * up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .common import launch_options, wait_for_inputs

BLOCK = 1024  # columns a program


@triton.jit
def silu_times(gate, up, dtype: tl.constexpr):
    """silu(gate) * up for fp32 tiles, rounded to the model's type between the two steps as the model does."""
    return (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32) * up


@triton.jit
def _silu_and_mul_kernel(x_ptr, out_ptr, x_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    wait_for_inputs(PDL)
    gate = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * x_stride + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    out = silu_times(gate, up, x_ptr.dtype.element_ty)
    tl.store(out_ptr + row * WIDTH + column, out, mask=inside)


def silu_and_mul(gate_up: torch.Tensor, *, pdl: bool = False) -> torch.Tensor:
    """gate_up [n, 2 I], gates first -> silu(gate) * up [n, I]."""
    n, double = gate_up.shape
    if double % 2 or gate_up.stride(1) != 1:
        raise ValueError(f"gate_up needs an even number of contiguous columns, got {tuple(gate_up.shape)}")
    width = double // 2
    out = torch.empty(n, width, dtype=gate_up.dtype, device=gate_up.device)
    if n:
        _silu_and_mul_kernel[(n, -(-width // BLOCK))](
            gate_up,
            out,
            gate_up.stride(0),
            WIDTH=width,
            BLOCK=BLOCK,
            **launch_options(pdl, gate_up.device, num_warps=4),
        )
    return out
