"""The two fixed suites: which requests run together and which ids they are forced to continue with.

A row is the logits at one request's last known position in one step; the middle chunk of a prompt gives none. A
request with n forced ids gives n rows: after the prompt, then after each forced id but the last, which only ends it.

    baseline  cases A to D: 3 + 7 + 3 + 2 = 15 rows; full and chunked prefill, decode, a page crossed, unequal lengths
    graph     1, 9, 16, 17 and 20 requests of unequal length, one prefill and one decode step each: 126 rows
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanolab.cases import walk

GRAPH_BATCHES = (1, 9, 16, 17, 20)


@dataclass(frozen=True)
class Group:
    """Requests that are added together to an empty scheduler."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    forced: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> int:
        return sum(len(ids) for ids in self.forced)


@dataclass(frozen=True)
class Suite:
    name: str
    groups: tuple[Group, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    num_kvcache_blocks: int  # enough for the largest group; a small pool can be checked whole

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    def engine_options(self) -> dict[str, Any]:
        names = ("max_num_seqs", "max_num_batched_tokens", "num_kvcache_blocks")
        options: dict[str, Any] = walk.ENGINE_OPTIONS | {name: getattr(self, name) for name in names}
        return options


def forced_ids(group: int, request: int, count: int) -> tuple[int, ...]:
    """Continuations that are no answers: ordinary ids (below 256 in every tokenizer used), different everywhere."""
    return tuple(32 + (37 * group + 17 * request + 11 * i) % 200 for i in range(count))


# A top-1 that rounding decides proves nothing. After these ids (case B has its lengths, but other prompts than in 5.2)
# the first two candidates of both synthetic models stand apart by more than bfloat16 can confuse, in every row.
PROMPTS = {name: case.prompts for name, case in walk.CASES.items()} | {"B": ((101, 102, 103), (111, 112, 113, 114))}
FORCED = {
    "A": ((138, 143, 65),),
    "B": ((240, 65), (162, 169, 104, 220, 65)),
    "C": ((194, 119, 65),),
    "D": ((65,), (65,)),  # the rows after each prompt's last chunk
}


def _baseline() -> Suite:
    groups = tuple(Group(name, PROMPTS[name], forced) for name, forced in FORCED.items())
    return Suite("baseline", groups, max_num_seqs=2, max_num_batched_tokens=512, num_kvcache_blocks=8)


def graph_prompt(batch: int, request: int) -> tuple[int, ...]:
    """The first request fills its first page, so that its decode step writes a new one; the others are short."""
    length = walk.BLOCK_SIZE if request == 0 else 5 + 2 * request
    return tuple(32 + (batch * 7 + request * 13 + i * 3) % 220 for i in range(length))


def _graph() -> Suite:
    groups = tuple(
        Group(
            str(batch),
            tuple(graph_prompt(batch, request) for request in range(batch)),
            tuple(forced_ids(batch, request, 2) for request in range(batch)),
        )
        for batch in GRAPH_BATCHES
    )
    return Suite("graph", groups, max_num_seqs=20, max_num_batched_tokens=1024, num_kvcache_blocks=24)


SUITES = {suite.name: suite for suite in (_baseline(), _graph())}


def prefix_sha256(token_ids: list[int]) -> str:
    """Names a row's whole input, so that two collections can prove that they computed the same thing."""
    return hashlib.sha256(np.asarray(token_ids, np.int64).tobytes()).hexdigest()


IDENTITY = ("group", "request", "round", "tokens", "position", "input_id", "next_id", "prefix_sha256")


def identity(
    group: str, request: int, round_: int, prefix: list[int], position: int, input_id: int, next_id: int
) -> dict[str, Any]:
    """What must be equal for two rows to be comparable; keys are IDENTITY."""
    values = (group, f"R{request + 1}", round_, len(prefix), position, input_id, next_id, prefix_sha256(prefix))
    return dict(zip(IDENTITY, values, strict=True))
