"""Causal attention of one head, in NumPy: the reference that every faster version must agree with.

Rows are positions. The queries are always the LAST rows of the sequence: with as many queries as keys every
position is computed (prefill); with one query, the newest position reads keys and values kept from earlier
rounds (decode).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .sampling import Floats, softmax


@dataclass(frozen=True)
class Attention:
    """Every intermediate of one call: T queries, N keys, width d."""

    scores: Floats  # [T, N]  how well each query matches each key, before the mask
    weights: Floats  # [T, N]  each row sums to 1; a masked key has weight 0
    output: Floats  # [T, d]  each row is a mixture of value rows


def attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, causal: bool = True) -> Attention:
    """softmax(Q K^T / sqrt(d)) V with later positions masked (Vaswani et al. 2017, equation 1), row by row.

    A row uses its own query and no other: that is why one row can be computed alone, bit for bit the same.
    """
    q, k, v = (np.asarray(rows, dtype=np.float64) for rows in (q, k, v))
    scores, weights = np.zeros((2, len(q), len(k)))
    output = np.zeros((len(q), v.shape[1]))
    first_position = len(k) - len(q)
    for row, query in enumerate(q):
        visible = first_position + row + 1 if causal else len(k)  # position i reads positions 0..i
        scores[row] = k @ query / np.sqrt(len(query))
        weights[row, :visible] = softmax(scores[row, :visible])
        output[row] = weights[row, :visible] @ v[:visible]
    return Attention(scores, weights, output)


def max_abs_difference(a: ArrayLike, b: ArrayLike) -> float:
    """max_i |a_i - b_i|: 0.0 means equal to the last bit."""
    return float(np.abs(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)).max())
