"""A language model small enough to print: generation that recomputes every position in every round (B.1.4).

Four-wide vectors, two blocks with one attention head each, six token ids. RMSNorm before attention and before
the MLP, position vectors added to the embedding, a ReLU MLP, weights fixed by a seed. Untrained, and with no
end token: what it says means nothing; what it computes, and how much of it, is the point.
"""

from dataclasses import dataclass

import numpy as np

from .attention import attention
from .sampling import Floats

WIDTH, MLP_WIDTH, VOCABULARY, MAX_POSITIONS = 4, 8, 6, 16


def rms_norm(x: Floats) -> Floats:
    """x / sqrt(mean(x^2) + eps), row by row (Zhang & Sennrich 2019); the learned scale is 1 here."""
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6))


@dataclass(frozen=True)
class Block:
    """h = x + Attn(Norm(x)), y = h + MLP(Norm(h)). Only attention lets a row see other rows."""

    wq: Floats
    wk: Floats
    wv: Floats
    wo: Floats
    w_up: Floats
    w_down: Floats

    @classmethod
    def random(cls, rng: np.random.Generator) -> "Block":
        wq, wk, wv, wo = rng.normal(size=(4, WIDTH, WIDTH)) / np.sqrt(WIDTH)
        w_up = rng.normal(size=(WIDTH, MLP_WIDTH)) / np.sqrt(WIDTH)
        w_down = rng.normal(size=(MLP_WIDTH, WIDTH)) / np.sqrt(MLP_WIDTH)
        return cls(wq, wk, wv, wo, w_up, w_down)

    def __call__(self, x: Floats) -> tuple[Floats, Floats]:
        """x [T, 4] -> y [T, 4], scores [T, T]."""
        n = rms_norm(x)
        attended = attention(n @ self.wq, n @ self.wk, n @ self.wv)
        h = x + attended.output @ self.wo
        y = h + np.maximum(rms_norm(h) @ self.w_up, 0) @ self.w_down
        return y, attended.scores


@dataclass(frozen=True)
class Forward:
    """One pass over all T input ids."""

    hidden: Floats  # [T, 4]  after the last block
    score_shapes: list[list[int]]  # [T, T] for each block
    logits: Floats  # [6]     of the last row: the only row that chooses a token


class Network:
    """ids -> logits of the last position. Holds weights and nothing else: every call starts from zero."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.embedding = rng.normal(size=(VOCABULARY, WIDTH))
        self.positions = rng.normal(size=(MAX_POSITIONS, WIDTH)) / 2
        self.blocks = [Block.random(rng), Block.random(rng)]
        self.lm_head = rng.normal(size=(WIDTH, VOCABULARY))

    def __call__(self, ids: list[int]) -> Forward:
        x = self.embedding[ids] + self.positions[: len(ids)]
        shapes = []
        for block in self.blocks:
            x, scores = block(x)
            shapes.append(list(scores.shape))
        return Forward(x, shapes, rms_norm(x[-1]) @ self.lm_head)
