"""Every acceptance value of the spec's principles.py section, against the formulas themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nanolab.errors import LabError
from nanolab.principles.attention import attention, max_abs_difference
from nanolab.principles.generation import Head, run_with_cache, run_without_cache, timeline
from nanolab.principles.layout import RankShapes, num_blocks, slot
from nanolab.principles.memory import GB, GIB, KIB, MIB, Budget, kv_bytes, kv_bytes_per_token
from nanolab.principles.sampling import greedy, sampled_frequencies, sampling_error, softmax
from nanolab.principles.shape import QWEN3_0_6B, ModelShape

X = np.array([[1, 0], [0, 1], [1, 1]])


def test_softmax_of_2_1_0() -> None:
    np.testing.assert_allclose(softmax([2, 1, 0]), [0.66524, 0.24473, 0.09003], atol=5e-6)


def test_softmax_survives_scores_that_would_overflow() -> None:
    np.testing.assert_allclose(softmax([1002, 1001, 1000]), softmax([2, 1, 0]))


def test_greedy_and_sampling() -> None:
    p = softmax([2, 1, 0])
    frequencies = sampled_frequencies(p, draws=10_000, seed=0)

    assert greedy([2, 1, 0]) == 0
    assert frequencies.sum() == pytest.approx(1)
    assert 0 < max_abs_difference(frequencies, p) < sampling_error(10_000) == 0.02  # near, not equal
    assert np.array_equal(frequencies, sampled_frequencies(p, draws=10_000, seed=0))


def test_attention_by_hand() -> None:
    a = attention(X, X, X)

    np.testing.assert_allclose(a.scores[-1], np.array([1, 1, 2]) / math.sqrt(2))
    weights = [[1, 0, 0], [0.3302, 0.6698, 0], [0.2483, 0.2483, 0.5035]]
    np.testing.assert_allclose(a.weights, weights, atol=5e-5)
    np.testing.assert_allclose(a.output[-1], [0.7517, 0.7517], atol=5e-5)
    np.testing.assert_allclose(a.weights.sum(axis=-1), 1)


def test_v_decides_what_is_mixed() -> None:
    output = attention(X, X, [[1, 0], [0, 2], [1, 2]]).output[-1]
    np.testing.assert_allclose(output, [0.75174492, 1.50348984], atol=5e-9)


def test_the_mask_protects_earlier_positions() -> None:
    changed = X.copy()
    changed[-1] = [9, -5]

    def earlier_delta(causal: bool) -> float:
        before, after = (attention(x, x, x, causal).output[:-1] for x in (X, changed))
        return max_abs_difference(before, after)

    assert earlier_delta(causal=True) == 0
    assert earlier_delta(causal=False) == pytest.approx(8.15455, abs=5e-6)


@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_row_by_row_equals_the_matrix_formula(length: int) -> None:
    q, k, v = np.random.default_rng(length).normal(size=(3, length, 8))
    mask = np.tril(np.ones((length, length), dtype=bool))
    expected = softmax(np.where(mask, q @ k.T / np.sqrt(8), -np.inf)) @ v

    np.testing.assert_allclose(attention(q, k, v).output, expected, atol=1e-12)


def test_the_last_query_alone_gives_the_last_row_to_the_bit() -> None:
    q, k, v = np.random.default_rng(3).normal(size=(3, 9, 4))
    assert np.array_equal(attention(q[-1:], k, v).output[-1], attention(q, k, v).output[-1])


def test_timeline() -> None:
    rounds = timeline(["t1", "t2", "t3"], ["t4", "t5", "t6"])

    assert [r.inputs for r in rounds] == [("t1", "t2", "t3"), ("t4",), ("t5",)]
    assert [r.kv_count for r in rounds] == [3, 4, 5]
    assert [r.known_token_count for r in rounds] == [4, 5, 6]
    assert [r.chosen for r in rounds] == ["t4", "t5", "t6"]


@pytest.mark.parametrize(
    ("prompt", "outputs", "without", "with_cache"), [(64, 8, 540, 71), (3, 3, 12, 5), (1, 1, 1, 1)]
)
def test_positions_without_and_with_a_cache(prompt: int, outputs: int, without: int, with_cache: int) -> None:
    x = np.random.default_rng(0).normal(size=(prompt + outputs - 1, 4))
    head = Head.random(width=4, seed=1)
    full, cached = run_without_cache(head, x, prompt), run_with_cache(head, x, prompt)

    assert full.input_widths == list(range(prompt, prompt + outputs))
    assert cached.input_widths == [prompt] + [1] * (outputs - 1)
    assert (full.total_positions, cached.total_positions) == (without, with_cache)
    assert len(full.last_outputs) == len(cached.last_outputs) == outputs
    assert max_abs_difference(full.last_outputs, cached.last_outputs) < 1e-12


def test_kv_bytes() -> None:
    assert kv_bytes_per_token(QWEN3_0_6B) == 114_688 == 112 * KIB
    assert kv_bytes(QWEN3_0_6B, 4096) == 448 * MIB
    assert 8 * kv_bytes(QWEN3_0_6B, 4096) == 3.5 * GIB
    assert kv_bytes(QWEN3_0_6B, 256) == 28 * MIB


def test_query_heads_do_not_count_for_kv() -> None:
    assert kv_bytes_per_token(ModelShape(num_q_heads=999)) == kv_bytes_per_token(QWEN3_0_6B)


def test_the_16_gib_card() -> None:
    card = Budget(gpu_bytes=16 * GIB, weight_bytes=12 * GB // 10, reserve_bytes=3 * GIB)

    assert card.weight_bytes / GIB == pytest.approx(1.118, abs=5e-4)
    assert card.kv_bytes / GIB == pytest.approx(11.882, abs=5e-4)
    assert (card.pool_blocks, card.blocks_per_request, card.requests) == (434, 16, 27)


def test_slots_and_blocks() -> None:
    assert [slot([17, 5, 23], position, 4) for position in (0, 6, 8)] == [68, 22, 92]
    assert [num_blocks(tokens, 256) for tokens in (255, 256, 257)] == [1, 1, 2]
    assert num_blocks(0, 256) == 0


def test_shapes_of_one_rank() -> None:
    rank = RankShapes(1)

    assert rank.qkv_width == 4096 == 2048 + 1024 + 1024
    assert rank.packed_rows() == {"q": [0, 2048], "k": [2048, 3072], "v": [3072, 4096]}
    assert rank.gate_up_width == 6144
    assert rank.activations()["q"] == ["T", 16, 128]
    assert rank.activations()["k"] == ["T", 8, 128]


def test_shapes_of_two_ranks() -> None:
    rank = RankShapes(2)

    assert (rank.q_heads, rank.kv_heads) == (8, 4)
    assert (rank.qkv_width, rank.gate_up_width) == (2048, 3072)
    assert rank.activations()["o_proj"] == ["T", 1024]  # the hidden size is whole again after the all-reduce


@pytest.mark.parametrize("tp", [0, 3, 16])
def test_kv_heads_must_divide_evenly(tp: int) -> None:
    with pytest.raises(LabError, match=rf"--tp {tp}: 8 KV heads .* one of \[1, 2, 4, 8\]"):
        RankShapes(tp)
