"""cpu_scheduler.py: the values of B.2.2 and B.6 on every engine, and that a wrong engine fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from engine_scripts import ROOT, block_of, load_script

from nanolab import sources
from nanolab.cases import scheduling, scheduling_memory
from nanolab.patches import build_baseline

SCRIPT = load_script("e2e/cpu_scheduler.py")


def upstream() -> Path:
    place = os.environ.get("NANO_UPSTREAM_DIR")
    if not place:
        pytest.skip("NANO_UPSTREAM_DIR is not set: no clone of upstream nano-vLLM to test with")
    return Path(place)


def check_preempt(source: Path, out: Path) -> None:
    result, block = block_of(SCRIPT, out, "preempt", "--source", source)
    facts = block["result"]
    assert block["check"] == "PASS" and block["evidence"] == "cpu-scheduler" and result.stdout.endswith("PASS\n")
    assert facts["selected"] == ["A", "B"] and facts["waiting"] == ["C"]
    assert facts["C"] == {"total": 5, "cached": 0, "blocks": [], "status": "WAITING", "outputs": 1}
    assert facts["prefill"]["free_blocks"] == 1, "the prefill takes three of the four blocks"
    assert facts["C_prefilled_again"] == [[5, 0, 5]]


def check_refs(source: Path, out: Path) -> None:
    result, block = block_of(SCRIPT, out, "refs", "--source", source)
    facts = block["result"]
    assert block["check"] == "PASS" and block["evidence"] == "cpu-scheduler" and result.stdout.endswith("PASS\n")
    assert facts["ref_counts"] == [[0, 0], [1, 1], [2, 2], [1, 1], [0, 0]]
    assert facts["hits_of_620"] == [2, 2] and facts["cached_tokens_of_620"] == 512
    assert facts["hits_of_exactly_512"] == 1
    assert facts["free_after_release"] == [True, True], "free, and still found by their hash"


def test_preempt_on_the_bundled_engine(tmp_path: Path) -> None:
    check_preempt(ROOT / "src", tmp_path / "scheduler-preemption.json")


def test_refs_on_the_bundled_engine(tmp_path: Path) -> None:
    check_refs(ROOT / "src", tmp_path / "prefix-cache-refs.json")


def test_preempt_on_upstream(tmp_path: Path) -> None:
    check_preempt(upstream(), tmp_path / "scheduler-preemption.json")


def test_refs_on_upstream(tmp_path: Path) -> None:
    check_refs(upstream(), tmp_path / "prefix-cache-refs.json")


def test_both_on_the_baseline(tmp_path: Path) -> None:
    source = sources.EngineSource("working-copy", build_baseline(tmp_path), "nanoengine")
    engine = scheduling.Engine.of(source, beside=True)
    for scene in (scheduling_memory.preempt, scheduling_memory.refs):
        assert scene(engine)[1] == []


def test_a_difference_is_said_in_numbers() -> None:
    assert scheduling_memory.differences({"waiting": []}, {"waiting": ["C"]}) == ["waiting: saw [], expected ['C']"]
