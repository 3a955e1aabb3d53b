"""check_budget_cpu.py: the step lists of section 5.2.4 on every engine, and that a wrong list fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from engine_scripts import ROOT, block_of, load_script, run

from nanolab import sources
from nanolab.cases import scheduling
from nanolab.errors import LabError
from nanolab.patches import build_baseline

SCRIPT = load_script("e2e/check_budget_cpu.py")
ENDING = [
    ["prefill", {"R1": [700, 512, 188], "R2": [32, 0, 32]}],
    ["decode", {"R1": [701, 700, 1], "R2": [33, 32, 1]}],
]


def steps_of(block: dict[str, Any], budget: int) -> list[list[Any]]:
    return [[step["phase"], step["before"]] for step in block["result"][f"budget_{budget}"]["steps"]]


def check(source: Path, out: Path) -> None:
    result, block = block_of(SCRIPT, out, "--source", source)
    assert block["check"] == "PASS" and block["evidence"] == "cpu-scheduler"
    assert result.stdout.splitlines()[-1] == "PASS"
    assert steps_of(block, 512) == [["prefill", {"R1": [700, 0, 512]}], *ENDING]
    assert steps_of(block, 256) == [
        ["prefill", {"R1": [700, 0, 256]}], ["prefill", {"R1": [700, 256, 256]}], *ENDING,
    ]  # fmt: skip
    rounds = [block["result"][f"budget_{budget}"]["prefill_rounds"] for budget in (512, 256)]
    assert rounds == [2, 3], "exactly one prefill round more"
    first = block["result"]["budget_512"]["steps"][0]
    assert first["after"]["R1"][:3] == [700, 512, 0], "the middle candidate is discarded"


def test_the_bundled_engine(tmp_path: Path) -> None:
    check(ROOT / "src", tmp_path / "budget-cpu.json")


def test_an_upstream_clone(tmp_path: Path) -> None:
    place = os.environ.get("NANO_UPSTREAM_DIR")
    if not place:
        pytest.skip("NANO_UPSTREAM_DIR is not set: no clone of upstream nano-vLLM to test with")
    check(Path(place), tmp_path / "budget-cpu.json")


def test_the_baseline_makes_the_same_steps(tmp_path: Path) -> None:
    baseline = sources.EngineSource("working-copy", build_baseline(tmp_path), "nanoengine")
    engine = scheduling.Engine.of(baseline, beside=True)
    for budget in (512, 256):
        assert scheduling.case_d_differences(scheduling.run_case_d(engine, budget), budget) == []


def test_other_steps_than_the_stated_ones_fail() -> None:
    engine = scheduling.Engine.of(sources.resolve(ROOT / "src"))
    wrong = scheduling.case_d_differences(scheduling.run_case_d(engine, 256), 512)
    assert wrong and "4 steps, expected 3" in wrong[0]
    with pytest.raises(LabError, match="states no steps for a budget of 300"):
        scheduling.case_d_differences([], 300)


def test_an_output_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = run(SCRIPT, "--source", ROOT / "src", "--out", tmp_path / "file" / "budget.json")
    assert result.exit_code == 2 and "budget 512" not in result.output
