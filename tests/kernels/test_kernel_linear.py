"""Small-batch linear kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import assert_close

from nanoengine.layers import kernels
from nanoengine.layers.kernels import reference, small_linear

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
def test_norm_prologue(dtype: torch.dtype) -> None:
    x, weight, _, norm = operands(1, 2 * 20, 96, dtype)
    normed = reference.rms_norm(x, norm, 1e-6)
    assert_close(kernels.norm_linear(x, norm, 1e-6, weight, tunables=TILES), reference.linear(normed, weight))
    wanted = reference.silu_and_mul(reference.linear(normed, weight))
    assert_close(kernels.norm_gate_up_silu(x, norm, 1e-6, weight, tunables=TILES), wanted)


def test_which_kernel_takes_how_many_rows() -> None:
    """The rule's outcome for Qwen3-0.6B, as measured: output and down projection 4 rows, QKV 3, gate-up 2."""
    shapes = {"o": 1024 * 2048, "down": 1024 * 3072, "qkv": 4096 * 1024, "gate_up": 6144 * 1024, "head": 151936 * 1024}
    taken = {
        name: max(n for n in range(1, 17) if small_linear.runs_in_registers(n, weights, kernels.LinearTunables()))
        for name, weights in shapes.items()
    }
    assert taken == {"o": 4, "down": 4, "qkv": 3, "gate_up": 2, "head": 1}
    assert small_linear.program_of(shapes["o"], kernels.LinearTunables()) == (16384, 8)
    assert small_linear.program_of(shapes["qkv"], kernels.LinearTunables()) == (8192, 4)


@pytest.mark.parametrize("products", [0, 2**24])
def test_both_kernels_agree_on_few_rows(products: int) -> None:
    x, weight, residual, _ = operands(3, 40, 96, torch.bfloat16)
    tunables = kernels.LinearTunables(gemv_tile=1024, skinny_block_k=16, gemv_products=products)
    assert_close(kernels.linear(x, weight, residual, tunables=tunables), reference.linear(x, weight, residual))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [17, 40])
def test_split_linear_and_the_norm_that_adds_its_pieces(n: int, dtype: torch.dtype) -> None:
    x, weight, residual, _ = operands(n, 32, 128, dtype)
    norm = (1 + 0.1 * torch.randn(32)).to(dtype)
    tunables = kernels.SplitTunables(block_m=32, block_n=16, block_k=16, pieces=4)
    parts = kernels.split_linear(x, weight, tunables=tunables)
    assert parts.shape == (4, n, 32)
    assert parts.dtype is torch.float32
    assert_close(parts.sum(0).to(dtype), reference.linear(x, weight))
    out, stream = kernels.add_rms_norm(parts, residual, norm, 1e-6)
    assert_close(stream, reference.linear(x, weight, residual))
    assert_close(out, reference.rms_norm(stream, norm, 1e-6))


def test_which_products_are_cut() -> None:
    """Qwen3-0.6B's output and down projection, up to 256 rows; not QKV, and not a shape that leaves a rest."""
    taken = {
        (outputs, width): [n for n in (17, 64, 256, 257) if kernels.splits_well(n, torch.empty(outputs, width))]
        for outputs, width in ((1024, 2048), (1024, 3072), (4096, 1024), (1024, 96), (40, 2048))
    }
    middle = [17, 64, 256]
    assert taken == {(1024, 2048): middle, (1024, 3072): middle, (4096, 1024): [], (1024, 96): [], (40, 2048): []}


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(64, 96\) cannot be cut into tiles of 32 outputs and 4 pieces"):
        kernels.split_linear(torch.randn(20, 96), torch.randn(64, 96))
    with pytest.raises(ValueError, match="must share K"):
        kernels.split_linear(torch.randn(20, 96), torch.randn(64, 128))
    with pytest.raises(ValueError, match="needs a residual"):
        kernels.add_rms_norm(torch.randn(2, 20, 8), None, torch.ones(8), 1e-6)


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 16 rows, got 17"):
        kernels.linear(torch.randn(17, 32), torch.randn(8, 32))
    with pytest.raises(ValueError, match="at most 1 rows, got 2"):
        kernels.norm_linear(torch.randn(2, 32), torch.ones(32), 1e-6, torch.randn(8, 32))
    with pytest.raises(ValueError, match="must share K"):
        kernels.linear(torch.randn(1, 32), torch.randn(8, 48))
