"""A maintainer edits the bundled engine: where each kind of edit ends up, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanolab.errors import LabError
from nanolab.patches import baseline_tree, build_baseline, pinned
from nanolab.patches import refresh as stack
from nanolab.patches.git import git

from .conftest import IDENTITY

SCHEDULER, ENGINE = "src/nanoengine/engine/scheduler.py", "src/nanoengine/engine/llm_engine.py"


def edit(root: Path, file: str, old: str, new: str) -> None:
    path = root / file
    text = path.read_text("utf-8")
    assert text.count(old) == 1, f"{file} has changed: {old!r} occurs {text.count(old)} times"
    path.write_text(text.replace(old, new), "utf-8")


def patches_of(root: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in sorted((root / "patches").iterdir())}


def baseline_text(root: Path, file: str, tmp_path: Path) -> str:
    return (build_baseline(tmp_path / "seen", root) / file.removeprefix("src/")).read_text("utf-8")


def test_an_edit_away_from_the_patches_goes_into_the_baseline(lab_root: Path, tmp_path: Path) -> None:
    before = patches_of(lab_root)
    edit(lab_root, SCHEDULER, "def stop_reason(self", "def reason_to_stop(self")
    assert any("baseline.json is out of date" in line for line in stack.problems(lab_root))
    done = stack.refresh(lab_root)
    assert done.rewritten == ["baseline.json"] and done.notes == []
    assert {name for name, text in patches_of(lab_root).items() if text != before[name]} == {"baseline.json"}
    assert "def reason_to_stop(self" in baseline_text(lab_root, SCHEDULER, tmp_path)
    assert done.commit == pinned(lab_root).commit != json.loads(before["baseline.json"])["commit"]


def test_an_edit_of_a_patchs_own_lines_goes_into_the_patch(lab_root: Path, tmp_path: Path) -> None:
    edit(lab_root, SCHEDULER, "self.last_was_prefill = False", "self.last_was_prefill: bool = False")
    done = stack.refresh(lab_root)
    assert done.rewritten == ["03-fair-scheduler.patch", "baseline.json"]
    assert any("03-fair-scheduler" in note for note in done.notes)
    assert "+        self.last_was_prefill: bool = False" in patches_of(lab_root)["03-fair-scheduler.patch"]
    assert "last_was_prefill" not in baseline_text(lab_root, SCHEDULER, tmp_path)


def test_lines_inserted_where_a_patch_removes_some_stay_on_both_sides(lab_root: Path, tmp_path: Path) -> None:
    old = "        del self.model_runner  # weights and KV pool\n"
    edit(lab_root, ENGINE, old, old + "        self.tokenizer = None\n")
    stack.refresh(lab_root)
    text = baseline_text(lab_root, ENGINE, tmp_path)
    assert "self.tokenizer = None" in text and "process.join()" in text


def test_an_edit_beside_a_hunk_only_moves_its_context(lab_root: Path) -> None:
    edit(
        lab_root, SCHEDULER, "# finished while scheduling: the pool can never hold them", "# the pool never holds them"
    )
    done = stack.refresh(lab_root)
    assert done.rewritten == ["03-fair-scheduler.patch", "baseline.json"]
    assert "the pool never holds them" in patches_of(lab_root)["03-fair-scheduler.patch"]


def test_refresh_works_from_history_when_the_last_state_is_only_there(lab_root: Path) -> None:
    """Several engine commits without a refresh, and no remembered copy: the old bundle is found in the history."""
    for number in range(3):
        edit(lab_root, SCHEDULER, "def take_exhausted", f"def x{number}(self) -> None: ...\n\n    def take_exhausted")
        git(*IDENTITY, "commit", "-q", "-a", "-m", f"edit {number}", cwd=lab_root, isolated=True)
    edit(lab_root, SCHEDULER, "self.last_was_prefill = False", "self.last_was_prefill: bool = False")
    assert not (lab_root / ".cache").exists()
    assert "03-fair-scheduler.patch" in stack.refresh(lab_root).rewritten
    assert stack.problems(lab_root) == []


def test_two_patches_that_meet_are_refused_and_nothing_is_written(lab_root: Path) -> None:
    path = lab_root / ENGINE
    text = path.read_text("utf-8")
    start, end = text.index("from itertools import count"), text.index("from .model_runner import")
    path.write_text(text[:start] + text[end:], "utf-8")  # the imports of 01 and of 04 are neighbours now
    before = patches_of(lab_root)
    with pytest.raises(LabError, match=r"nothing was written|unchanged lines"):
        stack.refresh(lab_root)
    assert patches_of(lab_root) == before


def test_an_edit_of_the_baseline_alone(lab_root: Path, tmp_path: Path) -> None:
    edited = build_baseline(tmp_path / "baseline", lab_root)
    edit(edited, "nanoengine/engine/llm_engine.py", "process.join()", "process.join(timeout=60)")
    done = stack.refresh(lab_root, baseline_edits=edited)
    assert done.rewritten == ["04-replica-isolation.patch", "baseline.json"]
    assert "-            process.join(timeout=60)" in patches_of(lab_root)["04-replica-isolation.patch"]
    assert stack.problems(lab_root) == []


def test_a_baseline_that_does_not_lead_to_the_bundle_is_refused_with_the_difference(
    lab_root: Path, tmp_path: Path
) -> None:
    edited = build_baseline(tmp_path / "baseline", lab_root)
    edit(edited, "nanoengine/engine/scheduler.py", "def is_finished", "def has_finished")
    before = patches_of(lab_root)
    with pytest.raises(LabError, match="has_finished"):
        stack.refresh(lab_root, baseline_edits=edited)
    assert patches_of(lab_root) == before


def test_an_edit_of_patched_lines_without_history_says_what_to_do(lab_root: Path) -> None:
    path = lab_root / "patches" / "baseline.json"
    path.write_text(path.read_text().replace(pinned(lab_root).bundled_sha256, "0" * 64))
    edit(lab_root, SCHEDULER, "self.last_was_prefill = False", "self.last_was_prefill: bool = False")
    with pytest.raises(LabError, match="not in the last 200 commits"):
        stack.refresh(lab_root)


def test_a_broken_series_is_named(lab_root: Path) -> None:
    series = lab_root / "patches" / "series"
    series.write_text(series.read_text() + "05-mixed-batch.patch\n")
    with pytest.raises(LabError, match=r"names 05-mixed-batch\.patch"):
        stack.problems(lab_root)
    series.write_text("01-step-trace.patch\n")
    with pytest.raises(LabError, match=r"02-graph-eager-fallback\.patch is not listed"):
        stack.problems(lab_root)
    (lab_root / "patches" / "baseline.json").write_text("{broken")
    with pytest.raises(LabError, match=r"git checkout -- patches/baseline\.json"):
        pinned(lab_root)


def test_the_manuals_door_gives_the_baseline(lab_root: Path) -> None:
    tree = baseline_tree(lab_root)
    assert "scheduling_policy" not in (tree / "src" / "nanoengine" / "config.py").read_text("utf-8")
    assert baseline_tree(lab_root) == tree
