"""From the scores of one row to one token: softmax, greedy choice, random draw."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def softmax(scores: ArrayLike) -> Floats:
    """p_i = exp(s_i) / sum_j exp(s_j), along the last axis.

    The maximum m is subtracted first: exp(s - m) / sum exp(s - m) is the same number, and cannot overflow.
    """
    values = np.asarray(scores, dtype=np.float64)
    exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def greedy(scores: ArrayLike) -> int:
    """Temperature 0: the index of the largest score, the same one every time."""
    return int(np.argmax(scores))


def sampled_frequencies(probabilities: ArrayLike, draws: int, seed: int) -> Floats:
    """Share of `draws` independent draws that chose each index. A fixed seed makes the draws repeatable."""
    p = np.asarray(probabilities, dtype=np.float64)
    chosen = np.random.default_rng(seed).choice(len(p), size=draws, p=p)
    return np.asarray(np.bincount(chosen, minlength=len(p)) / draws)


def sampling_error(draws: int) -> float:
    """How far a frequency may stray: four standard deviations, 4 sqrt(p (1 - p) / n) <= 2 / sqrt(n)."""
    return float(2 / np.sqrt(draws))
