"""Judging: identical collections pass; every planted fault is a FAIL or a REVIEW that names it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nanolab.numerics import Collection, Thresholds, judge
from nanolab.numerics.compare import errors
from nanolab.numerics.suites import identity
from nanolab.verdicts import Verdict

LIMITS = Thresholds(0.5, 0.02)
VOCAB = 50


def collection(name: str = "nano", rows: int = 4, **config: Any) -> Collection:
    trajectory = [identity("A", 0, i + 1, list(range(i + 3)), i + 2, i + 2, 40 + i) for i in range(rows)]
    block = {
        "model": {"config_sha256": "c" * 64, "weights_sha256": "w" * 64},
        "config": {"suite": "baseline", "backend": "nano", "execution": "eager", "dtype": "float32"} | config,
        "result": {"trajectory": trajectory, "expected_rows": rows, "history_unchanged": True},
    }
    logits = np.random.default_rng(1).normal(0, 3, (rows, VOCAB)).astype(np.float32)
    logits[:, 7] = 20.0  # a clear first choice
    return Collection(name, block, logits, None, True)


def test_equal_collections_pass() -> None:
    judgement = judge(collection(), collection("hf"), LIMITS)
    assert judgement.verdict is Verdict.PASS
    facts = judgement.facts
    assert (facts["rows"], facts["rows_within"], facts["top1_agree"], facts["first_abnormal"]) == (4, 4, 4, None)
    assert facts["worst"]["max_abs"]["value"] == 0


Spoil = Callable[[Collection], Any]


def edit(*path: Any, value: Any) -> Spoil:
    def spoil(side: Collection) -> None:
        place: Any = side.block
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return spoil


def put(row: int, column: int, value: float) -> Spoil:
    def spoil(side: Collection) -> None:
        side.logits[row, column] = value

    return spoil


def drop_row(side: Collection) -> Collection:
    side.trajectory.pop()
    return Collection(side.name, side.block, side.logits[:-1], None, True)


def missing_logits(side: Collection) -> Collection:
    return Collection(side.name, side.block, side.logits[:-1], None, True)


def other_file(side: Collection) -> Collection:
    return Collection(side.name, side.block, side.logits, None, False)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (edit("model", "weights_sha256", value="x" * 64), "model weights_sha256 differs"),
        (edit("model", "config_sha256", value="x" * 64), "model config_sha256 differs"),
        (edit("config", "dtype", value="bfloat16"), "dtype differs"),
        (edit("config", "suite", value="graph"), "suite differs"),
        (edit("result", "trajectory", 2, "prefix_sha256", value="0" * 64), "trajectory: row 3 has prefix_sha256"),
        (edit("result", "trajectory", 1, "position", value=9), "trajectory: row 2 has position 9 against 3"),
        (edit("result", "trajectory", 0, "next_id", value=9), "trajectory: row 1 has next_id"),
        (edit("result", "history_unchanged", value=False), "nano: history_unchanged is false"),
        (edit("result", "padding_safe", value=False), "nano: padding_safe is false"),
        (drop_row, "number of rows differs: 3 against 4"),
        (missing_logits, "not the same rows"),
        (other_file, "PREFIX.npz is not the file its block was written with"),
        (put(2, 3, np.nan), "row A/R1 round 3 (position 4): a logit is not finite"),
        (put(2, 3, np.inf), "a logit is not finite"),
    ],
)
def test_not_one_experiment_fails(spoil: Spoil, words: str) -> None:
    for flip in (False, True):
        left, right = collection(), collection("nano" if flip else "hf")
        if flip:  # the fault is caught on either side
            changed = spoil(right)
            judgement = judge(left, changed or right, LIMITS)
        else:
            changed = spoil(left)
            judgement = judge(changed or left, right, LIMITS)
        assert judgement.verdict is Verdict.FAIL
        if not flip or "against" not in words:
            assert any(words in fault for fault in judgement.faults), judgement.faults


def test_rows_lost_on_both_sides_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = drop_row(collection()), drop_row(collection("hf"))
    assert judge(left, right, LIMITS).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (put(1, 3, 12.0), "max_abs"),
        (put(3, 7, 0.0), "top-1"),
    ],
)
def test_numbers_beyond_a_threshold_are_for_review(spoil: Spoil, words: str) -> None:
    left = collection()
    spoil(left)
    judgement = judge(left, collection("hf"), LIMITS)
    assert judgement.verdict is Verdict.REVIEW
    assert len(judgement.breaches) == 1
    assert words in judgement.breaches[0]
    assert judgement.facts["rows_within"] == 3


def test_relative_error_alone_is_for_review() -> None:
    left, right = collection(), collection("hf")
    left.logits[0] += 0.4  # below max_abs everywhere, yet far from the row
    judgement = judge(left, right, LIMITS)
    assert judgement.verdict is Verdict.REVIEW
    assert "rel_l2" in judgement.breaches[0]
    assert "max_abs" not in judgement.breaches[0]


def test_top1_alone_is_for_review() -> None:
    left, right = collection(), collection("hf")
    right.logits[:, 8], left.logits[:, 8] = 19.9, 20.1
    judgement = judge(left, right, LIMITS)
    assert judgement.verdict is Verdict.REVIEW
    assert judgement.facts["top1_agree"] == 0
    assert "top-1 8 against 7" in judgement.breaches[0]


def test_the_first_abnormal_row_and_the_worst_one() -> None:
    left = collection()
    left.logits[1, 3] += 1
    left.logits[3, 3] += 2
    facts = judge(left, collection("hf"), LIMITS).facts
    assert facts["first_abnormal"] == "A/R1 round 2 (position 3)"
    assert facts["worst"]["max_abs"]["row"] == "A/R1 round 4 (position 5)"
    assert facts["worst"]["max_abs"]["value"] == pytest.approx(2, rel=1e-6)


def test_errors_by_hand() -> None:
    assert errors(np.float32([3, 4]), np.float32([0, 4])) == (3.0, 0.75)
    assert errors(np.float32([0, 0]), np.float32([0, 0])) == (0.0, 0.0)
    assert errors(np.float32([1]), np.float32([0])) == (1.0, float("inf"))


# ---- graph against eager --------------------------------------------------------------------------------


def graph_side(name: str, execution: str, routes: dict[str, str]) -> Collection:
    side = collection(name, suite="graph", execution=execution, max_num_seqs=20)
    side.block["result"]["routes"] = routes
    kv = np.random.default_rng(2).normal(size=(4, 3, 2, 2, 8)).astype(np.float32)
    return Collection(name, side.block, side.logits, kv, True)


EAGER = dict.fromkeys(["1", "9", "16", "17", "20"], "eager")
PATCHED = {"1": "graph 1", "9": "graph 16", "16": "graph 16", "17": "eager", "20": "eager"}
WITH_KV = Thresholds(0.5, 0.02, 0.1)


def test_graph_against_eager() -> None:
    judgement = judge(graph_side("eager", "eager", EAGER), graph_side("patched", "graph", PATCHED), WITH_KV)
    assert judgement.verdict is Verdict.PASS
    assert len(judgement.facts["routes"]) == 10
    assert all(judgement.facts["routes"].values())
    assert judgement.facts["kv"]["worst_max_abs"] == 0
    assert len(judgement.facts["kv"]["layers"]) == 6


@pytest.mark.parametrize(
    ("batch", "route"), [("9", "eager"), ("17", "graph 16"), ("16", "graph 16 + eager"), ("1", "graph 2")]
)
def test_another_route_fails(batch: str, route: str) -> None:
    ran = graph_side("patched", "graph", PATCHED | {batch: route})
    judgement = judge(graph_side("eager", "eager", EAGER), ran, WITH_KV)
    assert judgement.verdict is Verdict.FAIL
    assert [fault for fault in judgement.faults if f"graph: {batch} ->" in fault]


def test_new_kv_is_judged_layer_by_layer() -> None:
    left, right = graph_side("eager", "eager", EAGER), graph_side("patched", "graph", PATCHED)
    assert right.kv is not None
    right.kv[2, 1, 1] += 0.2
    judgement = judge(left, right, WITH_KV)
    assert judgement.verdict is Verdict.REVIEW
    assert judgement.breaches[0].startswith("layer 1 v: max_abs 0.2")
    assert judge(left, right, Thresholds(0.5, 0.02)).verdict is Verdict.PASS, "not asked for"


def test_new_kv_that_is_missing_or_not_finite_fails() -> None:
    left, right = graph_side("eager", "eager", EAGER), graph_side("patched", "graph", PATCHED)
    assert right.kv is not None
    bare = Collection(right.name, right.block, right.logits, None, True)
    assert judge(left, bare, WITH_KV).verdict is Verdict.FAIL
    right.kv[0, 0, 0, 0, 0] = np.nan
    assert judge(left, right, WITH_KV).verdict is Verdict.FAIL
    copied = copy.deepcopy(left)
    assert judge(left, copied, WITH_KV).verdict is Verdict.PASS
