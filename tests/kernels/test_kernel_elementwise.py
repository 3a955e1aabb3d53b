"""Store, norm, rotary and activation kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import assert_close, rotary_cache

from nanoengine.layers import kernels
from nanoengine.layers.kernels import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("slot_type", [torch.int32, torch.int64])
def test_store_kv_writes_its_slots_and_no_other(slot_type: torch.dtype) -> None:
    rows = torch.randn(4, 8 * 16)  # two Q heads, three K and three V heads, as the QKV projection leaves them
    k, v = rows[:, 32:80].view(4, 3, 16), rows[:, 80:128].view(4, 3, 16)
    caches = [torch.randn(2, 16, 3, 16) for _ in range(2)]
    expected = [cache.clone() for cache in caches]
    slots = torch.tensor([17, -1, 0, 31], dtype=slot_type)
    reference.store_kv(k, v, *expected, slots)
    kernels.store_kv(k, v, *caches, slots)
    assert torch.equal(caches[0], expected[0])
    assert torch.equal(caches[1], expected[1])


def test_store_kv_refuses_scattered_heads() -> None:
    k = torch.randn(3, 4, 16).transpose(0, 1)
    with pytest.raises(ValueError, match="contiguous heads"):
        kernels.store_kv(k, k, torch.zeros(2, 16, 3, 16), torch.zeros(2, 16, 3, 16), torch.zeros(4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 2), (2, 2)])
def test_qk_norm_rope_store(dtype: torch.dtype, heads: int, kv_heads: int) -> None:
    dim, n = 32, 5
    qkv = torch.randn(n, (heads + 2 * kv_heads) * dim).to(dtype)
    weights = [(1 + 0.1 * torch.randn(dim)).to(dtype) for _ in range(2)]
    positions = torch.tensor([0, 3, 63, 7, 0])
    slots = torch.tensor([5, -1, 20, 31, -1], dtype=torch.int32)
    caches = [torch.zeros(2, 16, kv_heads, dim, dtype=dtype) for _ in range(2)]
    expected_caches = [cache.clone() for cache in caches]
    args = (qkv, *weights, 1e-6, rotary_cache(64, dim), positions)
    expected = reference.qk_norm_rope(*args, heads, kv_heads, dim)
    reference.store_kv(expected[1], expected[2], *expected_caches, slots)
    q, k, v = kernels.qk_norm_rope_store(*args, slots, *caches, heads, kv_heads, dim)
    assert k is not None
    for out, wanted in zip((q, k, v, *caches), (*expected, *expected_caches), strict=True):
        assert_close(out, wanted)

    q_again, no_k, _ = kernels.qk_norm_rope_store(*args, None, None, None, heads, kv_heads, dim, keep_k=False)
    assert torch.equal(q, q_again)
    assert no_k is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_residual", [True, False])
def test_add_rms_norm_equals_transformers(dtype: torch.dtype, with_residual: bool) -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    width = 96  # not a power of two
    norm = Qwen3RMSNorm(width, eps=1e-6).to(dtype)
    norm.weight.data = (1 + 0.1 * torch.randn(width)).to(dtype)
    x = (3 * torch.randn(4, width)).to(dtype)
    residual = torch.randn(4, width).to(dtype) if with_residual else None
    summed = x if residual is None else x + residual
    out, new_residual = kernels.add_rms_norm(x, residual, norm.weight.data, 1e-6)
    assert torch.equal(new_residual, summed)
    wanted = norm(summed).detach()
    assert_close(out, wanted)
    if dtype is not torch.float32:
        assert (out == wanted).float().mean() > 0.99  # rounded at the same points


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul(dtype: torch.dtype) -> None:
    gate_up = (3 * torch.randn(3, 2 * 1500)).to(dtype)
    assert_close(kernels.silu_and_mul(gate_up), reference.silu_and_mul(gate_up))


def test_empty_batches_launch_nothing() -> None:
    assert kernels.silu_and_mul(torch.empty(0, 8)).shape == (0, 4)
    assert kernels.add_rms_norm(torch.empty(0, 8), None, torch.ones(8), 1e-6)[0].shape == (0, 8)
