"""Small-batch linear kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import assert_close, paged_cache

from nanoengine.layers import kernels
from nanoengine.layers.kernels import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TILES = kernels.LinearTunables(gemv_tile=1024, skinny_block_k=16)


def operands(n: int, outputs: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """x, weight, residual, norm weight."""
    torch.manual_seed(n + outputs)
    shapes = [(n, width), (outputs, width), (n, outputs), (width,)]
    x, weight, residual, norm = (torch.randn(*shape).to(dtype) for shape in shapes)
    return x, weight / width**0.5, residual, (1 + 0.1 * norm).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "outputs", "width"), [(1, 37, 96), (3, 64, 128), (5, 24, 96), (16, 40, 160)])
def test_linear(n: int, outputs: int, width: int, dtype: torch.dtype) -> None:
    x, weight, residual, _ = operands(n, outputs, width, dtype)
    assert_close(kernels.linear(x, weight, tunables=TILES), reference.linear(x, weight))
    assert_close(kernels.linear(x, weight, residual, tunables=TILES), reference.linear(x, weight, residual))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 7])
def test_gate_up_silu(n: int, dtype: torch.dtype) -> None:
    x, weight, _, _ = operands(n, 2 * 20, 96, dtype)
    wanted = reference.silu_and_mul(reference.linear(x, weight))
    assert_close(kernels.gate_up_silu(x, weight, tunables=TILES), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 4])
def test_norm_prologue(n: int, dtype: torch.dtype) -> None:
    x, weight, _, norm = operands(n, 2 * 20, 96, dtype)
    normed = reference.rms_norm(x, norm, 1e-6)
    assert_close(kernels.norm_linear(x, norm, 1e-6, weight, tunables=TILES), reference.linear(normed, weight))
    wanted = reference.silu_and_mul(reference.linear(normed, weight))
    assert_close(kernels.norm_gate_up_silu(x, norm, 1e-6, weight, tunables=TILES), wanted)


@pytest.mark.parametrize("splits", [1, 4])
def test_output_projection_merges_the_pieces(splits: int) -> None:
    """merge_linear_residual after rope_store_attend = merge_splits, then linear with residual."""
    heads, kv_heads, dim, page, lengths = 4, 2, 16, 16, [1, 70]
    k, v, tables = paged_cache(lengths, page, kv_heads, dim, torch.float32, seed=1)
    lens = torch.tensor(lengths, dtype=torch.int32)
    slots = torch.tensor([int(tables[0, 0]) * page, int(tables[1, 4]) * page + 5], dtype=torch.int32)
    qkv, ones, angles = torch.randn(2, 8 * dim), torch.ones(dim), torch.ones(128, dim)
    tunables = kernels.DecodeTunables(block_n=16, min_chunk=16, min_splits=splits, max_splits=splits)
    scratch = kernels.DecodeWorkspace.allocate(2, heads, kv_heads, dim, torch.device("cpu"), tunables)
    out = kernels.rope_store_attend(
        qkv, ones, ones, 1e-6, angles, lens - 1, slots, k, v, tables, lens, 0.25, heads, scratch
    )
    weight, residual = torch.randn(24, heads * dim), torch.randn(2, 24)
    y = kernels.merge_linear_residual(out, scratch, lens, kv_heads, weight, residual, tunables=TILES)
    merged = kernels.merge_splits(scratch, lens, out, kv_heads)
    assert_close(y, reference.linear(merged.flatten(1), weight, residual))


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 16 rows, got 17"):
        kernels.linear(torch.randn(17, 32), torch.randn(8, 32))
    with pytest.raises(ValueError, match="must share K"):
        kernels.linear(torch.randn(1, 32), torch.randn(8, 48))
