"""Random inputs and the error measure shared by the kernel tests and `scripts/maintain/bench_kernels.py`."""

from __future__ import annotations

import torch

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """||out - reference|| / ||reference|| in float64; a NaN or a missing element never passes."""
    assert out.shape == reference.shape, f"{tuple(out.shape)} is not {tuple(reference.shape)}"
    difference = torch.linalg.vector_norm(out.double() - reference.double())
    size = torch.linalg.vector_norm(reference.double())
    return float(difference / size) if float(size) else float(difference)


def assert_close(out: torch.Tensor, reference: torch.Tensor) -> None:
    error = relative_error(out, reference)
    assert error < TOLERANCE[out.dtype], f"relative error {error:.2e} in {out.dtype}"


def paged_cache(
    lengths: list[int],
    page: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    seed: int,
    device: str = "cpu",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """K and V pages and block tables [n, max_blocks] for sequences of these lengths, in shuffled pages.

    Whatever must never be read is poisoned: slots past a sequence's end and unused pages hold NaN, and a table's
    unused entries name a page that does not exist.
    """
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-length // page) for length in lengths]
    num_blocks = sum(needed) + 2
    order = torch.randperm(num_blocks, generator=generator).tolist()
    k = torch.full((num_blocks, page, kv_heads, head_dim), float("nan"))
    v = torch.full_like(k, float("nan"))
    tables = torch.full((len(lengths), max(*needed, 1) + 1), 2**30, dtype=torch.int32)
    for row, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        blocks = [order.pop() for _ in range(count)]
        tables[row, :count] = torch.tensor(blocks, dtype=torch.int32)
        for index, block in enumerate(blocks):
            filled = min(page, length - index * page)
            for cache in (k, v):
                cache[block, :filled] = torch.randn(filled, kv_heads, head_dim, generator=generator)
    return k.to(device, dtype), v.to(device, dtype), tables.to(device)


def rotary_cache(max_position: int, head_dim: int) -> torch.Tensor:
    """[max_position, head_dim] float32: cosines, then sines."""
    frequency = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angle = torch.arange(max_position)[:, None] * frequency[None, :]
    return torch.cat((angle.cos(), angle.sin()), dim=-1)
