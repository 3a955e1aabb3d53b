"""patch.py on working copies in every state: nothing of the learner's is ever lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_scripts import load_script, run

from nanolab.patches import create, find_patch, read_series
from nanolab.patches.git import apply as git_apply
from nanolab.patches.git import git

SCRIPT = load_script("e2e/patch.py")
NAMES = [patch.name for patch in read_series()]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    create(tmp_path / "engine")
    return tmp_path / "engine"


def engine_of(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in (root / "nanoengine").rglob("*.py")}


def edit(root: Path, file: str, old: str, new: str) -> None:
    path = root / "nanoengine" / file
    text = path.read_text("utf-8")
    assert text.count(old) == 1, f"{file}: {old!r} occurs {text.count(old)} times"
    path.write_text(text.replace(old, new), "utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_apply_and_revert_are_what_git_apply_does(copy: Path, name: str) -> None:
    before = engine_of(copy)
    result = run(SCRIPT, "apply", name, "--repo", copy)
    assert result.exit_code == 0 and f"applied {name}" in result.stdout and result.stdout.splitlines()[-1] == "PASS"
    assert git("apply", "--reverse", "--check", str(find_patch(name).path), cwd=copy).returncode == 0
    assert run(SCRIPT, "verify", "--repo", copy).exit_code == 0
    result = run(SCRIPT, "revert", name, "--repo", copy)
    assert result.exit_code == 0 and f"reverted {name}" in result.stdout
    assert engine_of(copy) == before
    assert git("status", "--porcelain", cwd=copy).stdout == ""


def test_the_plain_command_of_the_manual_works_on_the_file_itself(copy: Path) -> None:
    patch = str(find_patch("01").path)
    for arguments in (["--check"], [], ["--reverse", "--check"], ["--reverse"]):
        assert git("apply", *arguments, patch, cwd=copy).returncode == 0
    assert git("status", "--porcelain", cwd=copy).stdout == ""


def test_a_patch_is_named_by_number_name_or_file(copy: Path) -> None:
    for name in ("1", "02", "03-fair-scheduler", "04-replica-isolation.patch"):
        assert run(SCRIPT, "apply", name, "--repo", copy).exit_code == 0
    assert "baseline + " + ", ".join(NAMES) in run(SCRIPT, "verify", "--repo", copy).stdout
    unknown = run(SCRIPT, "apply", "7", "--repo", copy)
    assert unknown.exit_code == 2 and "the series holds 01-step-trace" in unknown.output


def test_twice_is_said_and_harmless(copy: Path) -> None:
    run(SCRIPT, "apply", "01", "--repo", copy)
    before = engine_of(copy)
    again = run(SCRIPT, "apply", "01", "--repo", copy)
    assert again.exit_code == 0 and "already applied; nothing to do" in again.stdout
    assert engine_of(copy) == before
    run(SCRIPT, "revert", "01", "--repo", copy)
    assert "already off; nothing to do" in run(SCRIPT, "revert", "01", "--repo", copy).stdout


def test_show_prints_why_and_what_and_keeps_stdout_a_patch(copy: Path) -> None:
    result = run(SCRIPT, "show", "02")
    assert result.exit_code == 0
    assert "StopIteration" in result.stdout and "diff --git a/nanoengine/engine/model_runner.py" in result.stdout
    assert git_apply(result.stdout, copy, check=True).returncode == 0
    assert result.stderr.strip() == "PASS"


def test_edits_elsewhere_do_not_stop_a_patch_and_survive_it(copy: Path) -> None:
    edit(copy, "engine/scheduler.py", "def add(self, seq: Sequence)", "def add(self, seq: Sequence, note: str = '')")
    for command in ("apply", "revert"):
        for name in NAMES:
            assert run(SCRIPT, command, name, "--repo", copy).exit_code == 0
    assert "note: str = ''" in (copy / "nanoengine/engine/scheduler.py").read_text()
    verified = run(SCRIPT, "verify", "--repo", copy)
    assert verified.exit_code == 3 and "your edit: changed  nanoengine/engine/scheduler.py  +1 -1" in verified.stdout
    assert verified.stdout.splitlines()[-1] == "REVIEW"


def test_a_conflict_is_refused_shown_and_nothing_is_written(copy: Path) -> None:
    edit(copy, "engine/scheduler.py", "self.running.extendleft(reversed(seqs))", "self.running.extend(seqs)")
    before = engine_of(copy)
    result = run(SCRIPT, "apply", "03", "--repo", copy)
    assert result.exit_code == 2
    assert "this hunk does not fit nanoengine/engine/scheduler.py" in result.output
    assert "+        self.running.extend(seqs)" in result.output, "the learner's own change is shown"
    assert "nothing was written" in result.output and "my-edit.patch" in result.output
    assert engine_of(copy) == before
    status = run(SCRIPT, "status", "--repo", copy)
    assert "03-fair-scheduler            conflict (hunks:" in status.stdout and "1 conflict" in status.stdout
    assert run(SCRIPT, "verify", "--repo", copy).exit_code == 1


def test_a_half_applied_patch_is_seen_hunk_by_hunk(copy: Path) -> None:
    hunks = find_patch("03").hunks()
    assert git_apply(hunks[1].diff, copy).returncode == 0
    before = engine_of(copy)
    status = run(SCRIPT, "status", "--repo", copy)
    assert f"1 applied, {len(hunks) - 1} not applied" in status.stdout
    for command in ("apply", "revert"):
        result = run(SCRIPT, command, "03", "--repo", copy)
        assert result.exit_code == 2 and "nothing was written" in result.output
    assert engine_of(copy) == before


def test_an_edited_patch_line_cannot_be_reverted_over(copy: Path) -> None:
    run(SCRIPT, "apply", "01", "--repo", copy)
    edit(copy, "engine/llm_engine.py", '"event": "engine_step"', '"event": "my_step"')
    before = engine_of(copy)
    result = run(SCRIPT, "revert", "01", "--repo", copy)
    assert result.exit_code == 2 and "was not reverted" in result.output
    assert engine_of(copy) == before


def test_several_patches_stop_at_the_first_that_does_not_fit(copy: Path) -> None:
    edit(copy, "engine/model_runner.py", "size = next(size for size", "size = next(s for s")
    result = run(SCRIPT, "apply", "01", "02", "03", "--repo", copy)
    assert result.exit_code == 2 and "applied 01-step-trace" in result.output and "02-graph" in result.output
    assert "scheduling_policy" not in (copy / "nanoengine/config.py").read_text()


@pytest.mark.parametrize("command", ["status", "verify"])
def test_places_that_are_no_working_copy(tmp_path: Path, command: str) -> None:
    missing = run(SCRIPT, command, "--repo", tmp_path / "none")
    assert missing.exit_code == 2 and "engine_source.py init" in missing.output
    (tmp_path / "up" / "nanovllm").mkdir(parents=True)
    clone = run(SCRIPT, command, "--repo", tmp_path / "up")
    assert clone.exit_code == 2 and "clone of upstream" in clone.output


def test_without_git_it_says_so(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(copy))
    result = run(SCRIPT, "status", "--repo", copy)
    assert result.exit_code == 2 and "git is not installed" in result.output


def test_windows_line_endings_are_a_conflict_not_damage(copy: Path) -> None:
    path = copy / "nanoengine/engine/llm_engine.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    before = engine_of(copy)
    assert run(SCRIPT, "apply", "01", "--repo", copy).exit_code == 2
    assert engine_of(copy) == before
