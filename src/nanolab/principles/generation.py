"""Which positions enter the model in each round of generation, and what a KV cache changes about it.

The same causal attention is run twice over the same inputs: once feeding the whole sequence every round, once
feeding only what the cache does not hold yet. Positions are counted while the rows are really computed.
"""

from dataclasses import dataclass

import numpy as np

from .attention import attention
from .sampling import Floats


@dataclass(frozen=True)
class Round:
    """One forward of the model and the token chosen from its last row."""

    inputs: tuple[str, ...]  # tokens whose keys and values this round computes
    chosen: str  # known from now on; becomes KV only as an input of the next round
    kv_count: int  # positions in the cache after the forward
    known_token_count: int  # tokens known after the choice


def timeline(prompt: list[str], outputs: list[str]) -> list[Round]:
    """Rounds of one request: each round feeds exactly the known tokens that have no KV yet."""
    known, kv_count, rounds = list(prompt), 0, []
    for chosen in outputs:
        inputs = known[kv_count:]
        kv_count += len(inputs)
        known.append(chosen)
        rounds.append(Round(tuple(inputs), chosen, kv_count, len(known)))
    return rounds


@dataclass(frozen=True)
class Head:
    """The projections of one attention head: q = x Wq, k = x Wk, v = x Wv."""

    wq: Floats
    wk: Floats
    wv: Floats

    @classmethod
    def random(cls, width: int, seed: int) -> "Head":
        """Weights from a normal distribution, scaled by 1/sqrt(width) so that scores stay near 1."""
        wq, wk, wv = np.random.default_rng(seed).normal(size=(3, width, width)) / np.sqrt(width)
        return cls(wq, wk, wv)


@dataclass(frozen=True)
class Run:
    """What each round fed to the head, and the last row that came out of it."""

    input_widths: list[int]
    last_outputs: list[Floats]

    @property
    def total_positions(self) -> int:
        return sum(self.input_widths)


def run_without_cache(head: Head, x: Floats, prompt_len: int) -> Run:
    """Every round computes all rows again. Widths S, S+1, ... S+G-1: G*S + G*(G-1)/2 positions in all."""
    widths, last = [], []
    for length in range(prompt_len, len(x) + 1):
        rows = x[:length]
        out = attention(rows @ head.wq, rows @ head.wk, rows @ head.wv).output
        widths.append(len(rows))
        last.append(out[-1])
    return Run(widths, last)


def run_with_cache(head: Head, x: Floats, prompt_len: int) -> Run:
    """Every round computes only new rows. Widths S, 1, ... 1: S + G - 1 positions in all.

    Old keys and values are kept, because later queries read them. Old queries are not: a query serves its own
    row only, and that row is finished.
    """
    k_cache, v_cache = np.empty((0, x.shape[1])), np.empty((0, x.shape[1]))
    widths, last = [], []
    for length in range(prompt_len, len(x) + 1):
        rows = x[len(k_cache) : length]
        k_cache = np.vstack([k_cache, rows @ head.wk])
        v_cache = np.vstack([v_cache, rows @ head.wv])
        out = attention(rows @ head.wq, k_cache, v_cache).output
        widths.append(len(rows))
        last.append(out[-1])
    return Run(widths, last)
