"""The suites hold the rows that the manual counts, and nothing in them can hit the prefix cache by accident."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from nanolab.numerics import SUITES, load_reference
from nanolab.numerics.routes import buckets, expected_route
from nanolab.numerics.suites import IDENTITY, Group, graph_requests, identity, prefix_sha256

MARGIN = 1.0  # twice what --max-abs 0.5 lets pass
TIED = 42  # after this id alone the first two candidates are 0.02 apart
VOCABULARY = 256  # ids below this are ordinary text in every tokenizer used


def test_baseline_has_15_rows() -> None:
    suite = SUITES["baseline"]
    assert {group.name: group.rows for group in suite.groups} == {"A": 3, "B": 7, "C": 3, "D": 2}
    assert suite.rows == 15
    assert (suite.max_num_seqs, suite.max_num_batched_tokens) == (2, 512)
    assert [len(p) for group in suite.groups for p in group.prompts] == [3, 3, 4, 256, 700, 32]


def test_graph_has_126_rows_of_unequal_requests() -> None:
    suite = SUITES["graph"]
    assert [len(group.prompts) for group in suite.groups] == [1, 9, 16, 17, 20]
    assert suite.rows == 126
    assert suite.max_num_seqs == 20
    for group in suite.groups:
        lengths = [len(prompt) for prompt in group.prompts]
        assert len(set(lengths)) == len(lengths)
        assert sum(lengths) <= suite.max_num_batched_tokens, "one prefill step must hold the whole group"
        assert 256 in lengths, "one decode step must begin a new page"
        blocks = sum(-(-(length + 1) // 256) for length in lengths)
        assert blocks <= suite.num_kvcache_blocks


@pytest.mark.parametrize("name", SUITES)
def test_prompts_of_a_group_share_no_page(name: str) -> None:
    for group in SUITES[name].groups:
        for left, right in combinations(group.prompts, 2):
            assert left != right
            assert min(len(left), len(right)) < 256 or left[:256] != right[:256]


@pytest.mark.parametrize("name", SUITES)
def test_forced_ids_are_ordinary_and_one_per_row(name: str) -> None:
    for group in SUITES[name].groups:
        assert all(32 <= i < VOCABULARY for ids in group.forced for i in ids)
        assert len(group.forced) == len(group.prompts)


def test_a_graph_group_takes_the_first_requests() -> None:
    requests = graph_requests()
    assert len(set(requests)) == 20
    for group in SUITES["graph"].groups:
        assert group.prompts == tuple(prompt for prompt, _ in requests[: len(group.prompts)])
    for short, longer in zip(requests[1:5], requests[16:], strict=True):
        assert longer[0][:-1] == short[0]
        assert longer[0][-1] == short[1]


def smallest_margin(model: Any, group: Group) -> float:
    """The least distance between the first two candidates, over the rows of a group."""
    margins = []
    for prompt, forced in zip(group.prompts, group.forced, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *forced[:-1]]])).logits[0, len(prompt) - 1 :]
        best = logits.float().topk(2).values
        margins += (best[:, 0] - best[:, 1]).tolist()
    assert len(margins) == group.rows
    return float(min(margins))


@pytest.mark.parametrize("name", SUITES)
def test_no_row_is_a_near_tie(name: str, tiny_model: Path) -> None:
    """Only then does the same top-1 mean something; the 0.6B shape is held to the same by the GPU run's verdict."""
    model = load_reference(tiny_model, "cpu", "float32")
    assert {g.name: smallest_margin(model, g) > MARGIN for g in SUITES[name].groups} == {
        g.name: True for g in SUITES[name].groups
    }
    tied = Group("tied", ((TIED,),), ((65,),))
    assert smallest_margin(model, tied) < MARGIN, "the measure must be able to see one"


def test_identity_tells_trajectories_apart() -> None:
    row = identity("B", 1, 2, [5, 6, 7], 2, 7, 9)
    assert tuple(row) == IDENTITY
    assert (row["request"], row["tokens"]) == ("R2", 3)
    assert row["prefix_sha256"] == prefix_sha256([5, 6, 7]) != prefix_sha256([5, 7, 6])


def test_routes_with_twenty_sequences() -> None:
    assert buckets(20) == [1, 2, 4, 8, 16]
    assert buckets(32) == [1, 2, 4, 8, 16, 32]
    wanted = {1: "graph 1", 9: "graph 16", 16: "graph 16", 17: "eager", 20: "eager"}
    assert {batch: expected_route("graph", batch, 20) for batch in wanted} == wanted
    assert {expected_route("eager", batch, 20) for batch in wanted} == {"eager"}
