"""Greedy and Gumbel-max sampling in one pass over the logits, split over the vocabulary.

argmax(logits / T + g) with independent Gumbel noise g draws from softmax(logits / T): no softmax, no sort and no
second pass. The noise is a hash of (seed, position, vocabulary index), see layers/random.py, whose functions are
repeated here on 32-bit words.

At 256 rows this is 39 million pairs of logarithms a step, and exact ones would cost more than reading the logits:
`_negative_log` uses the GPU's own log2, corrected where it matters.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .common import launch_options, power_of_two, wait_for_inputs

BLOCK = 2048  # logits a program

MIX_1, MIX_2 = tl.constexpr(0x85EBCA6B), tl.constexpr(0xC2B2AE35)
GOLDEN = tl.constexpr(0x9E3779B9)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _mix(h):
    h = h ^ (h >> 16)
    h = h * MIX_1
    h = h ^ (h >> 13)
    h = h * MIX_2
    return h ^ (h >> 16)


@triton.jit
def _row_key(seed, position):
    """Two 32-bit words from a row's seed (int64) and position."""
    position = position.to(tl.uint32)
    low = _mix(seed.to(tl.uint32) ^ _mix(position + tl.full([], GOLDEN, tl.uint32)))
    high = _mix((seed >> 32).to(tl.uint32) ^ _mix(low ^ position))
    return low, high


@triton.jit
def _log2(x, HARDWARE: tl.constexpr):
    if HARDWARE:  # one instruction; relative error 2^-22, but absolute error 2^-22 for x between 0.5 and 2
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return tl.log2(x)


@triton.jit
def _negative_log(u, HARDWARE: tl.constexpr):
    """-log(u), u in (0, 1). The largest noise comes from u next to 1, where the hardware is least exact: a series."""
    rest = 1.0 - u  # exact
    series = rest * (1.0 + rest * (0.5 + rest * (1.0 / 3.0)))
    return tl.where(rest < 1.0 / 64.0, series, -LN2 * _log2(u, HARDWARE))


@triton.jit
def _gumbel(low, high, index, HARDWARE: tl.constexpr):
    """Gumbel noise -log(-log(uniform)) of vocabulary entries `index` for the row with this key."""
    h = _mix((index.to(tl.uint32) * tl.full([], GOLDEN, tl.uint32) + high) ^ low)
    uniform = ((h >> 9).to(tl.float32) + 0.5) * (2.0**-23)
    return -LN2 * _log2(_negative_log(uniform, HARDWARE), HARDWARE)


@triton.jit
def _best_of_block_kernel(
    logits_ptr,
    temperature_ptr,
    seed_ptr,
    position_ptr,
    best_ptr,
    index_ptr,
    stride,
    vocabulary,
    BLOCK: tl.constexpr,
    HARDWARE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (n, blocks): the best score and its index (the lowest on a tie) of one block of one row."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    index = block * BLOCK + tl.arange(0, BLOCK)
    inside = index < vocabulary
    wait_for_inputs(PDL)
    score = tl.load(logits_ptr + row.to(tl.int64) * stride + index, mask=inside, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0:
        low, high = _row_key(tl.load(seed_ptr + row).to(tl.int64), tl.load(position_ptr + row))
        score = score / temperature + _gumbel(low, high, index, HARDWARE)
    best, at = tl.max(score, axis=0, return_indices=True, return_indices_tie_break_left=True)
    out = row * tl.num_programs(1) + block
    tl.store(best_ptr + out, best)
    tl.store(index_ptr + out, block * BLOCK + at)


@triton.jit
def _best_of_row_kernel(best_ptr, index_ptr, token_ptr, blocks, BLOCKS_PAD: tl.constexpr, PDL: tl.constexpr):
    """Grid (n,): blocks lie in vocabulary order, so the leftmost best keeps the lowest index."""
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS_PAD)
    wait_for_inputs(PDL)
    best = tl.load(best_ptr + row * blocks + block, mask=block < blocks, other=float("-inf"))
    winner = tl.argmax(best, axis=0, tie_break_left=True)
    tl.store(token_ptr + row, tl.load(index_ptr + row * blocks + winner).to(tl.int64))


def sample(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """logits [n, vocabulary], temperatures [n] float32, seeds [n] int64, positions [n] -> token ids [n] int64.

    Temperature 0 is greedy. Equal to `layers.random.sample_gumbel` up to the rounding of two logarithms: about one
    draw in a hundred thousand, between candidates that are as good as equal.
    """
    n, vocabulary = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"logits need contiguous rows, got strides {logits.stride()}")
    blocks = -(-vocabulary // BLOCK)
    best = torch.empty(n, blocks, dtype=torch.float32, device=logits.device)
    index = torch.empty(n, blocks, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(n, dtype=torch.int64, device=logits.device) if out is None else out
    if n:
        _best_of_block_kernel[(n, blocks)](
            logits,
            temperatures,
            seeds,
            positions,
            best,
            index,
            logits.stride(0),
            vocabulary,
            BLOCK=BLOCK,
            HARDWARE=isinstance(_best_of_block_kernel, triton.JITFunction),  # the interpreter knows no PTX
            **launch_options(pdl, logits.device, num_warps=4),
        )
        _best_of_row_kernel[(n,)](
            best,
            index,
            tokens,
            blocks,
            BLOCKS_PAD=power_of_two(blocks),
            **launch_options(pdl, logits.device, num_warps=1),
        )
    return tokens
