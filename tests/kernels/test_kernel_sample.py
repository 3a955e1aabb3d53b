"""The counter-based random numbers and the sampling kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nanoengine.layers import kernels
from nanoengine.layers import random as counter


def keys(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(n) * 7919 + (1 << 40), torch.arange(n) + 100


def test_kernel_hash_equals_torch_hash() -> None:
    """Uniform logits and temperature 1: the kernel's winner is the largest noise of the torch reference."""
    seeds, positions = keys(6)
    logits = torch.zeros(6, 5000)
    ids = kernels.sample(logits, torch.ones(6), seeds, positions)
    assert torch.equal(ids, counter.counter_uniform(seeds, positions, 5000).argmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sample_equals_reference_in_a_mixed_batch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (4 * torch.randn(6, 9001)).to(dtype)
    temperatures = torch.tensor([0.0, 0.7, 1.0, 0.0, 2.0, 0.3])
    seeds, positions = keys(6)
    seeds[2] = -5  # a seed is any 64-bit integer
    ids = kernels.sample(logits, temperatures, seeds, positions.to(torch.int32))
    assert torch.equal(ids, counter.sample_gumbel(logits, temperatures, seeds, positions))
    assert torch.equal(ids[[0, 3]], logits[[0, 3]].float().argmax(-1))


def test_ties_go_to_the_lowest_id_across_blocks() -> None:
    logits = torch.zeros(1, 9000)
    logits[0, [2047, 2048, 8999]] = 1.0
    assert kernels.sample(logits, torch.zeros(1), *keys(1)).tolist() == [2047]
    assert counter.sample_gumbel(logits, torch.zeros(1), *keys(1)).tolist() == [2047]


def test_uniforms_lie_inside_the_open_interval_and_are_even() -> None:
    u = counter.counter_uniform(*keys(64), 4096)
    assert u.dtype == torch.float32
    assert 0.0 < float(u.min()) < float(u.max()) < 1.0
    counts = torch.histc(u, 16, 0.0, 1.0)
    chi2 = float(((counts - u.numel() / 16) ** 2 / (u.numel() / 16)).sum())
    assert chi2 < 37.7  # 99.9 % point of chi-square with 15 degrees of freedom; the hash is fixed, so is the value


def test_rows_and_positions_are_unrelated() -> None:
    u = counter.counter_uniform(torch.tensor([1, 1, 2, 1 << 32]), torch.tensor([5, 6, 5, 5]), 20000).numpy()
    correlation = np.corrcoef(u) - np.eye(4)
    assert np.abs(correlation).max() < 0.03
    lagged = np.corrcoef(u[0, :-1], u[0, 1:])[0, 1]
    assert abs(lagged) < 0.03


@pytest.mark.parametrize("lag", [1, 2, 7])
def test_neighbouring_entries_are_unrelated(lag: int) -> None:
    """Pairs of one row fall evenly into the 32 x 32 cells of the unit square."""
    u = counter.counter_uniform(torch.arange(128), torch.full((128,), 7), 8192).numpy()
    cells, _, _ = np.histogram2d(u[:, :-lag].ravel(), u[:, lag:].ravel(), bins=32, range=((0, 1), (0, 1)))
    expected = cells.sum() / 1024
    assert ((cells - expected) ** 2 / expected).sum() < 1172  # 99.9 % point, 1023 degrees of freedom


def test_every_entry_wins_equally_often_under_uniform_logits() -> None:
    seeds = torch.arange(16).repeat_interleave(400)
    u = counter.counter_uniform(seeds, torch.arange(400).repeat(16), 500)
    counts = torch.bincount(u.argmax(-1), minlength=500).double()
    expected = len(seeds) / 500
    assert float(((counts - expected) ** 2 / expected).sum()) < 602  # 99.9 % point, 499 degrees of freedom


def test_the_kernel_corrects_the_logarithm_where_the_winners_are() -> None:
    """Below 2^-6 a series stands in for the hardware's log2, whose error there would be as large as the value."""
    rest = (np.arange(0, 2**17, dtype=np.float64) + 0.5) * 2**-23  # 1 - u, up to 1 / 64
    series = rest * (1 + rest * (0.5 + rest / 3))
    assert np.abs(series / -np.log1p(-rest) - 1).max() < 2e-6


def test_gumbel_max_draws_from_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0]).expand(20000, 3)
    seeds, positions = torch.full((20000,), 42), torch.arange(20000)
    ids = counter.sample_gumbel(logits, torch.ones(20000), seeds, positions)
    frequencies = torch.bincount(ids, minlength=3) / 20000
    assert torch.allclose(frequencies, torch.tensor([0.66524, 0.24473, 0.09003]), atol=0.012)
