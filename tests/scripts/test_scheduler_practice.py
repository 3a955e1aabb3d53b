"""scheduler_practice.py on the bundle and on working copies: what passes, what is missing, what stays untouched."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from engine_scripts import ROOT, block_of, load_script, run

from nanolab.patches import create, find_patch, put
from nanolab.patches.git import git

SCRIPT = load_script("e2e/scheduler_practice.py")
SCENARIOS = ["long-prefill", "rotation", "chunks", "short-of-kv", "reclamation"]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    create(tmp_path / "engine")
    return tmp_path / "engine"


def fingerprint(root: Path) -> dict[str, tuple[str, int]]:
    files = [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(p): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in files}


def test_the_bundle_passes_with_the_facts_of_section_5_4_2(tmp_path: Path) -> None:
    result, block = block_of(SCRIPT, tmp_path / "scheduler-cpu.json", "--source", ROOT / "src")
    facts = block["result"]
    assert block["check"] == "PASS" and block["evidence"] == "cpu-scheduler"
    assert list(facts) == SCENARIOS and result.stdout.count("GOOD") == 5
    assert all(facts[name]["default_equals_baseline"] for name in SCENARIOS)
    assert facts["rotation"]["served_by_three_decode_steps"] == {
        "baseline": ["R1", "R2"], "default": ["R1", "R2"], "balanced": ["R1", "R2", "R3", "R4", "R5", "R6"],
    }  # fmt: skip
    assert facts["long-prefill"]["longest_gap_of_short"] == {"baseline": 6, "default": 6, "balanced": 2}
    first = facts["long-prefill"]["first_token_step_of_long"]
    assert first["balanced"] > first["default"], "the long prompt pays"
    assert facts["long-prefill"]["phases"]["balanced"].startswith("PDDPDPDPDPDP")
    assert list(facts["chunks"]["chunks"].values()) == [[8, 8, 8, 6]] * 3
    assert all(count > 0 for count in facts["short-of-kv"]["decodes_while_prefill_lacks_blocks"].values())


def test_a_working_copy_without_patch_03_is_told_which_patch_it_needs(copy: Path) -> None:
    result = run(SCRIPT, "--source", copy)
    assert result.exit_code == 2 and "03-fair-scheduler" in result.output and "git -C" in result.output


def test_a_working_copy_with_patch_03_passes_and_is_not_touched(copy: Path) -> None:
    put(find_patch("03"), copy, reverse=False)
    before = fingerprint(copy)
    assert run(SCRIPT, "--source", copy).exit_code == 0
    assert fingerprint(copy) == before
    assert git("stash", "list", cwd=copy).stdout == ""


def test_a_default_that_was_changed_by_the_way_is_found(copy: Path) -> None:
    put(find_patch("03"), copy, reverse=False)
    path = copy / "nanoengine/engine/scheduler.py"
    text = path.read_text()
    old = "            self.running.extendleft(reversed(seqs))\n"
    assert text.count(old) == 1
    path.write_text(text.replace(old, "            self.running.extend(seqs)\n"))
    result = run(SCRIPT, "--source", copy)
    assert result.exit_code == 1
    assert "BAD  rotation: the default's step" in result.stderr and result.stdout.splitlines()[-1] == "FAIL"


def test_a_balanced_policy_without_rotation_is_found(copy: Path) -> None:
    put(find_patch("03"), copy, reverse=False)
    path = copy / "nanoengine/engine/scheduler.py"
    text = path.read_text()
    assert text.count("        if self.balanced:\n") == 1
    path.write_text(text.replace("        if self.balanced:\n", "        if False:\n"))
    result = run(SCRIPT, "--source", copy)
    assert result.exit_code == 1 and "must reach all six" in result.stderr


def test_a_repository_without_the_baseline_commit_says_so(copy: Path) -> None:
    put(find_patch("03"), copy, reverse=False)
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost.invalid")
    for command in (["checkout", "-q", "--orphan", "mine"], [*identity, "commit", "-q", "-a", "-m", "mine"],
                    ["branch", "-q", "-D", "lab/walkthrough"], ["tag", "-d", "baseline"],
                    ["reflog", "expire", "--expire=now", "--all"], ["gc", "-q", "--prune=now"]):  # fmt: skip
        done = git(*command, cwd=copy)
        assert done.returncode == 0, done.stderr
    result = run(SCRIPT, "--source", copy)
    assert result.exit_code == 2 and "does not hold the baseline commit" in result.output


def test_upstream_has_no_balanced(tmp_path: Path) -> None:
    place = os.environ.get("NANO_UPSTREAM_DIR")
    if not place:
        pytest.skip("NANO_UPSTREAM_DIR is not set: no clone of upstream nano-vLLM to test with")
    result = run(SCRIPT, "--source", place)
    assert result.exit_code == 2 and "working copy with patch 03" in result.output
