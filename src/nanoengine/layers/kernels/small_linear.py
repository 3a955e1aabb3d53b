"""Linear layers for a handful of rows (decode at small batch): y = x W^T with W [N, K] streamed exactly once.

At batch 1 a linear layer does two operations for every weight it reads: time is weight bytes over bandwidth, and
everything else is overhead to hide. Two kernels:

- `_gemv_kernel` (1 to 4 rows). A program owns a few weight rows and loads them WHOLE into registers, in one burst,
  before it waits for its inputs (see common.py): under PDL the weights of a layer arrive while the layer before
  it still computes. A prologue may RMS-normalise its one row of x; an epilogue finishes y (plain, plus residual, or
  silu(gate) * up).
- `_skinny_kernel` (up to 16 rows). The same streaming on tensor cores: x padded to 16 rows is the left operand;
  the K dimension is dealt out to the warps of a program, whose partial sums are added at the end.

Which one, and how large its programs are, is decided by `runs_in_registers` and `program_of`, from measurements on
an H200 (the manual's "Where the time goes").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .activation import silu_times
from .common import launch_options, power_of_two, wait_for_inputs


@dataclass(frozen=True)
class LinearTunables:
    gemv_rows: int = 4  # most rows of x that the register kernel takes ...
    gemv_products: int = 2**24  # ... and, for more than one row, fewer products (rows * weights) than this
    gemv_tile: int = 0  # weights a program of the register kernel holds; 0: `program_of`
    gemv_warps: int = 4
    skinny_rows: int = 16  # most rows of x of the tensor-core kernel
    skinny_block_n: int = 16  # weight rows a program (8 where N is small)
    skinny_block_k: int = 128  # K columns a warp takes at a time
    skinny_warps: int = 4
    skinny_stages: int = 4  # one fewer for gate_up_silu, which streams two matrices


DEFAULT_TUNABLES = LinearTunables()
SMALL_WEIGHTS = 2**21  # a matrix up to this size is one wave of large programs on a big GPU


def runs_in_registers(rows: int, weights: int, tunables: LinearTunables) -> bool:
    """One row always. With more, the register kernel multiplies on ordinary cores, which must stay hidden behind the
    reading: the output projection keeps it up to 4 rows, the larger QKV and gate-up up to 3 and 2."""
    return rows == 1 or (rows <= tunables.gemv_rows and rows * weights < tunables.gemv_products)


def program_of(weights: int, tunables: LinearTunables) -> tuple[int, int]:
    """(weights, warps) of a program of the register kernel: large ones where the matrix is small, so that about one
    program a multiprocessor does it all at once; otherwise several smaller ones that take turns."""
    if tunables.gemv_tile:
        return tunables.gemv_tile, tunables.gemv_warps
    return (16384, 8) if weights <= SMALL_WEIGHTS else (8192, 4)


@triton.jit
def _normed_row(x_ptr, weight, cols, inside, eps, K: tl.constexpr):
    """One row of x, RMS-normalised as the model rounds it; fp32 [BLOCK_K]."""
    dtype = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    normed = (x * tl.rsqrt(tl.sum(x * x, axis=0) / K + eps)).to(dtype).to(tl.float32)
    return (normed * weight).to(dtype).to(tl.float32)


@triton.jit
def _gemv_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    residual_ptr,
    norm_ptr,
    x_stride,
    eps,
    BATCH: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORM: tl.constexpr,
    SILU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program i makes outputs i * BLOCK_N .. of every row of x; BLOCK_K covers all K columns at once."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    cols = tl.arange(0, BLOCK_K)
    dtype = w_ptr.dtype.element_ty
    column_inside = cols < K
    row_inside = rows < N
    inside = row_inside[:, None] & column_inside[None, :]
    offsets = rows.to(tl.int64)[:, None] * K + cols[None, :]
    w = tl.load(w_ptr + offsets, mask=inside, other=0.0)
    if SILU:  # the second half of W's 2N rows
        w_up = tl.load(w_ptr + offsets + N * K, mask=inside, other=0.0)
    if NORM:
        norm_weight = tl.load(norm_ptr + cols, mask=column_inside, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    for b in tl.static_range(BATCH):
        if NORM:
            x = _normed_row(x_ptr + b * x_stride, norm_weight, cols, column_inside, eps, K)
        else:
            x = tl.load(x_ptr + b * x_stride + cols, mask=column_inside, other=0.0).to(tl.float32)
        y = tl.sum(w.to(tl.float32) * x[None, :], axis=1)
        if SILU:
            up = tl.sum(w_up.to(tl.float32) * x[None, :], axis=1)
            y = silu_times(y.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32), dtype)
        if RESIDUAL:
            y = y.to(dtype).to(tl.float32)
            y += tl.load(residual_ptr + b * N + rows, mask=row_inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + b * N + rows, y, mask=row_inside)


@triton.jit
def _skinny_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    residual_ptr,
    x_stride,
    batch,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WARPS: tl.constexpr,
    SILU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program i makes outputs i * BLOCK_N .. for up to 16 rows of x, WARPS slices of K side by side."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    b = tl.arange(0, 16)
    dtype = w_ptr.dtype.element_ty
    slice_k = tl.arange(0, WARPS)[:, None, None] * BLOCK_K  # [WARPS, 1, 1]: where each warp's columns start
    k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + b[None, :, None] * x_stride + slice_k + k[None, None, :]  # [WARPS, 16, BLOCK_K]
    w_offsets = rows.to(tl.int64)[None, None, :] * K + slice_k + k[None, :, None]  # [WARPS, BLOCK_K, BLOCK_N]
    in_batch = b[None, :, None] < batch
    in_rows = rows[None, None, :] < N
    acc = tl.zeros([WARPS, 16, BLOCK_N], tl.float32)
    acc_up = tl.zeros([WARPS, 16, BLOCK_N], tl.float32)
    wait_for_inputs(PDL)
    for first in tl.range(0, K, WARPS * BLOCK_K):
        x = tl.load(x_ptrs + first, mask=in_batch & (first + slice_k + k[None, None, :] < K), other=0.0)
        in_w = in_rows & (first + slice_k + k[None, :, None] < K)
        w = tl.load(w_ptr + w_offsets + first, mask=in_w, other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
        if SILU:
            w_up = tl.load(w_ptr + w_offsets + N * K + first, mask=in_w, other=0.0)
            acc_up = tl.dot(x, w_up, acc_up, input_precision="ieee")
    y = tl.sum(acc, axis=0).to(dtype).to(tl.float32)  # [16, BLOCK_N]
    out = b[:, None] * N + rows[None, :]
    inside = (b[:, None] < batch) & (rows[None, :] < N)
    if SILU:
        y = silu_times(y, tl.sum(acc_up, axis=0).to(dtype).to(tl.float32), dtype)
    if RESIDUAL:
        y += tl.load(residual_ptr + out, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + out, y, mask=inside)


def _check(x: torch.Tensor, weight: torch.Tensor, limit: int) -> None:
    if x.shape[1] != weight.shape[1] or x.stride(1) != 1 or not weight.is_contiguous():
        raise ValueError(f"x {tuple(x.shape)} and a contiguous weight {tuple(weight.shape)} must share K")
    if x.shape[0] > limit:
        raise ValueError(
            f"at most {limit} rows, got {x.shape[0]}; use kernels.linear up to 16, torch.nn.functional.linear above"
        )


def _gemv(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    outputs: int,
    pdl: bool,
    tunables: LinearTunables,
    silu: bool = False,
    residual: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Launch `_gemv_kernel`; unused pointers are given x."""
    batch, width = x.shape
    block_k = power_of_two(width)
    tile, warps = program_of(weight.numel(), tunables)
    block_n = max(tile // block_k // (2 if silu else 1), 1)
    y = torch.empty(batch, outputs, dtype=weight.dtype, device=weight.device)
    _gemv_kernel[(-(-outputs // block_n),)](
        x,
        weight,
        y,
        x if residual is None else residual,
        x if norm_weight is None else norm_weight,
        x.stride(0),
        eps,
        BATCH=batch,
        N=outputs,
        K=width,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        NORM=norm_weight is not None,
        SILU=silu,
        RESIDUAL=residual is not None,
        **launch_options(pdl, x.device, warps),
    )
    return y


def _skinny(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    outputs: int,
    pdl: bool,
    tunables: LinearTunables,
    silu: bool = False,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    batch, width = x.shape
    block_n = tunables.skinny_block_n if outputs > 2048 else 8
    y = torch.empty(batch, outputs, dtype=weight.dtype, device=weight.device)
    _skinny_kernel[(-(-outputs // block_n),)](
        x,
        weight,
        y,
        y if residual is None else residual,
        x.stride(0),
        batch,
        N=outputs,
        K=width,
        BLOCK_N=block_n,
        BLOCK_K=tunables.skinny_block_k,
        WARPS=tunables.skinny_warps,
        SILU=silu,
        RESIDUAL=residual is not None,
        **launch_options(pdl, x.device, tunables.skinny_warps, tunables.skinny_stages - silu),
    )
    return y


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None = None,
    *,
    pdl: bool = False,
    tunables: LinearTunables = DEFAULT_TUNABLES,
) -> torch.Tensor:
    """x [n <= 16, K], weight [N, K] -> x W^T (+ residual [n, N], contiguous), rounded before the addition."""
    _check(x, weight, tunables.skinny_rows)
    run = _gemv if runs_in_registers(x.shape[0], weight.numel(), tunables) else _skinny
    return run(x, weight, outputs=weight.shape[0], pdl=pdl, tunables=tunables, residual=residual)


def gate_up_silu(
    x: torch.Tensor, weight: torch.Tensor, *, pdl: bool = False, tunables: LinearTunables = DEFAULT_TUNABLES
) -> torch.Tensor:
    """x [n <= 16, K], weight [2 I, K] (gates first) -> silu(x Wg^T) * (x Wu^T) [n, I]."""
    _check(x, weight, tunables.skinny_rows)
    run = _gemv if runs_in_registers(x.shape[0], weight.numel(), tunables) else _skinny
    return run(x, weight, outputs=weight.shape[0] // 2, pdl=pdl, tunables=tunables, silu=True)


def norm_linear(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    *,
    pdl: bool = False,
    tunables: LinearTunables = DEFAULT_TUNABLES,
) -> torch.Tensor:
    """x [1, K] -> RMSNorm(x) W^T [1, N]; every program normalises the row again, which is cheaper than a launch."""
    _check(x, weight, 1)
    return _gemv(
        x, weight, outputs=weight.shape[0], pdl=pdl, tunables=tunables, norm_weight=norm_weight, eps=eps
    )  # fmt: skip


def norm_gate_up_silu(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    *,
    pdl: bool = False,
    tunables: LinearTunables = DEFAULT_TUNABLES,
) -> torch.Tensor:
    """x [1, K] -> silu(RMSNorm(x) Wg^T) * (RMSNorm(x) Wu^T) [1, I], weight [2 I, K] with gates first."""
    _check(x, weight, 1)
    return _gemv(
        x, weight, outputs=weight.shape[0] // 2, pdl=pdl, tunables=tunables, silu=True, norm_weight=norm_weight, eps=eps
    )  # fmt: skip
