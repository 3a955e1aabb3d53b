"""Paged attention kernels against plain torch: random lengths, tables, page sizes and head counts."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import assert_close, paged_cache, relative_error, rotary_cache

from nanoengine.layers import kernels
from nanoengine.layers.kernels import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def workspace(batch: int, heads: int, kv_heads: int, head_dim: int, **sizes: int) -> kernels.DecodeWorkspace:
    tunables = kernels.DecodeTunables(**sizes)
    return kernels.DecodeWorkspace.allocate(batch, heads, kv_heads, head_dim, torch.device("cpu"), tunables)


@pytest.mark.parametrize(
    ("page", "heads", "kv_heads", "head_dim", "lengths"),
    [
        (16, 4, 2, 16, [1, 0, 15, 16, 17, 97]),  # one key, a padded row, both sides of a page edge
        (48, 2, 2, 32, [47, 48, 49, 130]),  # a page that is no power of two and no multiple of a tile
        (64, 8, 1, 16, [0, 64, 65, 200]),  # tiles inside pages, eight query heads a KV head
        (256, 6, 2, 64, [255, 256, 257]),  # three query heads a KV head: padded to four inside
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_decode(page: int, heads: int, kv_heads: int, head_dim: int, lengths: list[int], dtype: torch.dtype) -> None:
    k, v, tables = paged_cache(lengths, page, kv_heads, head_dim, dtype, seed=page)
    q = torch.randn(len(lengths), heads, head_dim).to(dtype)
    lens = torch.tensor(lengths, dtype=torch.int32)
    scratch = workspace(len(lengths), heads, kv_heads, head_dim, block_n=32, min_chunk=32, min_splits=4)
    out = kernels.paged_decode_attention(q, k, v, tables, lens, head_dim**-0.5, scratch)
    assert_close(out, reference.paged_decode_attention(q, k, v, tables, lens, head_dim**-0.5))
    assert not out[lens == 0].any()


@pytest.mark.parametrize("splits", [1, 2, 16])
def test_number_of_splits_changes_nothing(splits: int) -> None:
    lengths = [1, 130, 0, 257]
    k, v, tables = paged_cache(lengths, 16, 2, 16, torch.float32, seed=splits)
    q, lens = torch.randn(4, 4, 16), torch.tensor(lengths, dtype=torch.int32)
    scratch = workspace(4, 4, 2, 16, block_n=16, min_chunk=16, min_splits=splits, max_splits=splits)
    assert scratch.splits(4, 2) == splits
    out = kernels.paged_decode_attention(q, k, v, tables, lens, 0.25, scratch)
    assert_close(out, reference.paged_decode_attention(q, k, v, tables, lens, 0.25))


def test_splits_follow_shapes_only() -> None:
    tunables = kernels.DecodeTunables(min_splits=2, max_splits=16, programs_per_sm=2)
    assert tunables.splits(1, 8, 132) == 16
    assert tunables.splits(16, 8, 132) == 4
    assert tunables.splits(256, 8, 132) == 2


def test_workspace_too_small_is_refused() -> None:
    k, v, tables = paged_cache([5] * 8, 16, 2, 16, torch.float32, seed=0)
    lens = torch.full((8,), 5, dtype=torch.int32)
    small = workspace(1, 4, 2, 16, min_splits=4, max_splits=4)
    with pytest.raises(ValueError, match=r"batch 8 with 4 splits needs 128 .* holds 16"):
        kernels.paged_decode_attention(torch.randn(8, 4, 16), k, v, tables, lens, 1.0, small)


@pytest.mark.parametrize(("page", "head_dim", "word"), [(24, 16, "multiple of 16"), (16, 24, "power of two")])
def test_impossible_shapes_are_refused(page: int, head_dim: int, word: str) -> None:
    k, v, tables = paged_cache([5], page, 2, head_dim, torch.float32, seed=0)
    lens = torch.tensor([5], dtype=torch.int32)
    with pytest.raises(ValueError, match=word):
        kernels.paged_decode_attention(
            torch.randn(1, 4, head_dim), k, v, tables, lens, 1.0, workspace(1, 4, 2, head_dim)
        )


@pytest.mark.parametrize(
    ("page", "heads", "kv_heads", "head_dim", "queries", "cached"),
    [
        (16, 4, 2, 16, [1, 15, 16, 40], [0, 0, 0, 0]),
        (48, 2, 1, 32, [33, 1, 7], [48, 96, 0]),
        (64, 2, 2, 64, [70], [64]),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_paged_prefill(
    page: int, heads: int, kv_heads: int, head_dim: int, queries: list[int], cached: list[int], dtype: torch.dtype
) -> None:
    lengths = [a + b for a, b in zip(queries, cached, strict=True)]
    k, v, tables = paged_cache(lengths, page, kv_heads, head_dim, dtype, seed=page)
    q = torch.randn(sum(queries), heads, head_dim).to(dtype)
    cu_q = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    cu_k = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    small = kernels.PrefillTunables(block_m=32, block_n=32)
    out = kernels.paged_prefill_attention(q, k, v, cu_q, cu_k, tables, max(queries), head_dim**-0.5, tunables=small)
    assert_close(out, reference.paged_prefill_attention(q, k, v, cu_q, cu_k, tables, head_dim**-0.5))


def test_prefill_without_cache_reads_views() -> None:
    lengths = [5, 64, 1]
    qkv = torch.randn(sum(lengths), 8, 16)  # 4 Q, 2 K and 2 V heads, as the projection leaves them
    q, k, v = qkv.split([4, 2, 2], dim=1)
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    out = kernels.prefill_attention(q, k, v, bounds, max(lengths), 0.25)
    assert_close(out, reference.prefill_attention(q, k, v, bounds, 0.25))


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_decode_step_equals_its_parts(dtype: torch.dtype) -> None:
    """rope_store_attend + merge = QK norm, RoPE, store, then attention over the updated cache."""
    heads, kv_heads, dim, page, lengths = 4, 2, 16, 16, [1, 16, 17, 0, 70]
    k, v, tables = paged_cache(lengths, page, kv_heads, dim, dtype, seed=3)
    lens = torch.tensor(lengths, dtype=torch.int32)
    positions = (lens - 1).clamp(min=0)
    slots = torch.tensor(
        [int(tables[r, (n - 1) // page]) * page + (n - 1) % page if n else -1 for r, n in enumerate(lengths)],
        dtype=torch.int32,
    )
    qkv = torch.randn(5, (heads + 2 * kv_heads) * dim).to(dtype)
    weights = [(1 + 0.1 * torch.randn(dim)).to(dtype) for _ in range(2)]
    angles = rotary_cache(128, dim)
    q_ref, k_ref, v_ref = reference.qk_norm_rope(qkv, *weights, 1e-6, angles, positions, heads, kv_heads, dim)
    k_after, v_after = k.clone(), v.clone()
    reference.store_kv(k_ref, v_ref, k_after, v_after, slots)
    expected = reference.paged_decode_attention(q_ref, k_after, v_after, tables, lens, 0.25)

    scratch = workspace(5, heads, kv_heads, dim, block_n=16, min_chunk=16)
    out = kernels.rope_store_attend(
        qkv, *weights, 1e-6, angles, positions, slots, k, v, tables, lens, 0.25, heads, scratch
    )
    out = kernels.merge_splits(scratch, lens, out, kv_heads)
    assert_close(out, expected)
    for cache, after in ((k, k_after), (v, v_after)):
        assert torch.equal(cache.isnan(), after.isnan()), "the step wrote a slot that is not its own"
        assert relative_error(cache.nan_to_num(), after.nan_to_num()) < 4e-3
