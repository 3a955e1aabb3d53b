"""Linear layers with few outputs for a medium batch: y = x W^T as partial sums over pieces of K.

The output and down projections of Qwen3-0.6B have 1024 outputs. Where one program makes one tile of them, a batch of
17 to 256 rows is a few dozen programs, each on a long way along K (2048 or 3072), and most of the GPU idles. Cutting
K as well makes enough programs. Adding up their sums takes no launch: the residual addition and norm that follow
(norm.py) read the pieces in place of the product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .common import launch_options, wait_for_inputs

MAX_ROWS = 256
MAX_OUTPUTS = 1024  # a wider matrix has tiles enough, and cuBLAS is good at it


@dataclass(frozen=True)
class SplitTunables:
    """A program makes block_m rows x block_n outputs over K / pieces columns, block_k of them at a time."""

    block_m: int = 64
    block_n: int = 64
    block_k: int = 64
    pieces: int = 4
    num_stages: int = 6

    @classmethod
    def for_rows(cls, rows: int) -> SplitTunables:
        """Measured on an H200: with these sizes 1024 outputs are about a program for each of 132 multiprocessors."""
        return cls(block_n=32 if rows <= 64 else 64, pieces=4 if rows <= 128 else 2)


@triton.jit
def _split_linear_kernel(
    x_ptr,
    w_ptr,
    part_ptr,
    x_stride,
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PIECES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (N / BLOCK_N, row tiles, PIECES): one tile of outputs, summed over one piece of K."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.program_id(2) * (K // PIECES) + tl.arange(0, BLOCK_K)
    inside = (m < rows)[:, None]
    x_ptrs = x_ptr + m[:, None] * x_stride + k[None, :]
    w_ptrs = w_ptr + n[None, :] * K + k[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    wait_for_inputs(PDL)
    for first in tl.range(0, K // PIECES, BLOCK_K):
        x = tl.load(x_ptrs + first, mask=inside, other=0.0)
        acc = tl.dot(x, tl.load(w_ptrs + first), acc, input_precision="ieee")
    part = (tl.program_id(2) * rows + m[:, None]) * N + n[None, :]
    tl.store(part_ptr + part, acc, mask=inside)


def splits_well(rows: int, weight: torch.Tensor) -> bool:
    """Whether `split_linear` takes this many rows and this weight, and was measured to gain by it."""
    outputs, width = weight.shape
    t = SplitTunables.for_rows(rows)
    return (
        rows <= MAX_ROWS and outputs <= MAX_OUTPUTS and outputs % t.block_n == 0 and width % (t.pieces * t.block_k) == 0
    )


def split_linear(
    x: torch.Tensor, weight: torch.Tensor, *, pdl: bool = False, tunables: SplitTunables | None = None
) -> torch.Tensor:
    """x [n, K], weight [N, K] -> float32 [pieces, n, N], whose sum over pieces is x W^T; add_rms_norm takes it so."""
    rows, width = x.shape
    outputs = weight.shape[0]
    t = tunables or SplitTunables.for_rows(rows)
    if width != weight.shape[1] or x.stride(1) != 1 or not weight.is_contiguous():
        raise ValueError(f"x {tuple(x.shape)} and a contiguous weight {tuple(weight.shape)} must share K")
    if outputs % t.block_n or width % (t.pieces * t.block_k):
        raise ValueError(
            f"a weight {tuple(weight.shape)} cannot be cut into tiles of {t.block_n} outputs and {t.pieces} pieces of "
            f"whole {t.block_k} columns; use torch.nn.functional.linear"
        )
    parts = torch.empty(t.pieces, rows, outputs, dtype=torch.float32, device=x.device)
    _split_linear_kernel[(outputs // t.block_n, -(-rows // t.block_m), t.pieces)](
        x,
        weight,
        parts,
        x.stride(0),
        rows,
        N=outputs,
        K=width,
        BLOCK_M=t.block_m,
        BLOCK_N=t.block_n,
        BLOCK_K=t.block_k,
        PIECES=t.pieces,
        **launch_options(pdl, x.device, num_warps=4, num_stages=t.num_stages),
    )
    return parts
