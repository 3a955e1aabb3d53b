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


# A near tie hides errors: where rounding alone decides the top-1, an exact engine disagrees now and then and a wrong
# one may agree, so a breach says nothing. After these ids (case B has its lengths, but other prompts than in 5.2) the
# first two candidates of both synthetic models stand more than 1.0 apart in every row: twice the largest error that
# --max-abs 0.5 lets pass, so that no permitted error can swap them.
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


# Requests 1 to 15 of every graph group: (salt of the prompt, id forced after it), chosen like FORCED: of the prompts
# that the formula gives, those whose rows are no near ties. Request 0 is case C's prompt, which fills a page, so that
# its decode step begins a new one; the last four are requests 1 to 4 with their forced id and another one after it.
GRAPH_SALTS = (
    (27, 74), (27, 235), (54, 166), (171, 155), (126, 235), (54, 40), (99, 98), (153, 175), (81, 181), (108, 45),
    (99, 225), (117, 224), (144, 162), (126, 146), (43, 180),
)  # fmt: skip
GRAPH_PROLONGED = (216, 107, 60, 162)


def graph_requests() -> tuple[tuple[tuple[int, ...], int], ...]:
    """20 (prompt, forced id) of unequal length; a group takes the first ones."""

    def prompt(request: int, salt: int) -> tuple[int, ...]:
        return tuple(32 + (17 * salt + 5 * i * i + salt * i) % 200 for i in range(5 + 2 * request))

    first = (PROMPTS["C"][0], 194)
    short = [(prompt(number, salt), forced) for number, (salt, forced) in enumerate(GRAPH_SALTS, 1)]
    longer = [((*start, then), forced) for (start, then), forced in zip(short, GRAPH_PROLONGED, strict=False)]
    return (first, *short, *longer)


def _graph() -> Suite:
    requests = graph_requests()
    groups = tuple(
        Group(
            str(batch),
            tuple(prompt for prompt, _ in requests[:batch]),
            tuple((forced, 65) for _, forced in requests[:batch]),
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
