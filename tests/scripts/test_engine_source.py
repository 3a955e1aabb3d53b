"""engine_source.py: making the working copy, never overwriting one, saying where it stands, checking a clone."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
from engine_scripts import load_script, run

from nanolab.patches import create, pinned
from nanolab.patches.git import git
from nanolab.source_walk import UPSTREAM_PIN

SCRIPT = load_script("e2e/engine_source.py")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    create(tmp_path / "engine")
    return tmp_path / "engine"


def files_of(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_init_makes_it_and_says_the_commit(tmp_path: Path) -> None:
    result = run(SCRIPT, "init", "--dir", tmp_path / "a b" / "engine")
    assert result.exit_code == 0
    assert pinned().commit in result.stdout and "lab/walkthrough" in result.stdout
    assert result.stdout.splitlines()[-1] == "PASS"
    assert (tmp_path / "a b" / "engine" / "nanoengine" / "engine" / "scheduler.py").is_file()


def test_init_twice_changes_nothing(copy: Path) -> None:
    (copy / "nanoengine" / "engine" / "scheduler.py").write_text("my own edit\n")
    before = files_of(copy)
    result = run(SCRIPT, "init", "--dir", copy)
    assert result.exit_code == 2
    assert "is a working copy; nothing was changed" in result.output and "status --dir" in result.output
    assert files_of(copy) == before


def test_the_next_command_survives_a_path_with_a_space(tmp_path: Path) -> None:
    place = tmp_path / "我的 engine"
    assert run(SCRIPT, "init", "--dir", place).exit_code == 0
    again = run(SCRIPT, "init", "--dir", place)
    assert f"status --dir {shlex.quote(str(place))}" in again.output


@pytest.mark.parametrize("what", ["file", "directory", "empty", "dangling link"])
def test_init_leaves_whatever_is_there(tmp_path: Path, what: str) -> None:
    place = tmp_path / "engine"
    if what == "file":
        place.write_text("notes")
    elif what == "dangling link":
        place.symlink_to(tmp_path / "nowhere")
    else:
        place.mkdir()
        if what == "directory":
            (place / "notes.txt").write_text("mine")
    result = run(SCRIPT, "init", "--dir", place)
    assert result.exit_code == 2 and "not a working copy; nothing was changed" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine"], "no half-made directory beside it"
    if what == "directory":
        assert (place / "notes.txt").read_text() == "mine"


def test_an_init_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no git
    result = run(SCRIPT, "init", "--dir", tmp_path / "engine")
    assert result.exit_code == 2
    assert "git is not installed" in result.output and "Install it" in result.output
    assert list(tmp_path.iterdir()) == []


def test_status_tells_patches_from_edits(copy: Path) -> None:
    clean = run(SCRIPT, "status", "--dir", copy)
    assert clean.exit_code == 0 and "HEAD is the baseline" in clean.stdout and "none beside the patches" in clean.stdout
    assert clean.stdout.splitlines()[-1] == "COLLECTED"
    assert git("apply", str(Path("patches/01-step-trace.patch").resolve()), cwd=copy).returncode == 0
    llm = copy / "nanoengine" / "llm.py"
    llm.write_text(llm.read_text() + "# mine\n")
    (copy / "nanoengine" / "policy.py").write_text("x = 1\n")
    dirty = run(SCRIPT, "status", "--dir", copy)
    rows = dirty.stdout.splitlines()
    assert [row.split()[1:] for row in rows if row.startswith("patch ")] == [
        ["01-step-trace", "applied"], ["02-graph-eager-fallback", "not", "applied"],
        ["03-fair-scheduler", "not", "applied"], ["04-replica-isolation", "not", "applied"],
    ]  # fmt: skip
    edits = [row.split(maxsplit=2)[2] for row in rows if row.startswith("your edit ")]
    assert [" ".join(edit.split()) for edit in edits] == [
        "changed nanoengine/llm.py +1 -0", "added nanoengine/policy.py",
    ]  # fmt: skip


def test_status_of_what_is_not_there_or_not_one(tmp_path: Path, copy: Path) -> None:
    missing = run(SCRIPT, "status", "--dir", tmp_path / "none")
    assert missing.exit_code == 2 and "engine_source.py init" in missing.output
    (tmp_path / "empty").mkdir()
    empty = run(SCRIPT, "status", "--dir", tmp_path / "empty")
    assert empty.exit_code == 2 and "holds no nanoengine/" in empty.output
    shutil.rmtree(copy / ".git")
    bare = run(SCRIPT, "status", "--dir", copy)
    assert bare.exit_code == 2 and "not a git repository of its own" in bare.output


def test_status_of_another_versions_copy(copy: Path) -> None:
    shutil.rmtree(copy / ".git")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "other"]):
        done = git("-c", "user.name=t", "-c", "user.email=t@localhost.invalid", *command, cwd=copy, isolated=True)
        assert done.returncode == 0
    assert "made by another version of the lab" in run(SCRIPT, "status", "--dir", copy).stdout


def test_upstream_without_a_clone_prints_the_commands_and_is_pending(tmp_path: Path) -> None:
    result = run(SCRIPT, "upstream", "--dir", tmp_path / "nano vllm")
    assert result.exit_code == 4
    lines = result.stdout.splitlines()
    assert lines[0].startswith("git clone https://github.com/GeeeekExplorer/nano-vllm.git '")
    assert UPSTREAM_PIN in lines[1] and lines[-1] == "PENDING"


def test_upstream_refuses_what_is_no_clone(copy: Path) -> None:
    result = run(SCRIPT, "upstream", "--dir", copy)
    assert result.exit_code == 2 and "not a clone of nano-vLLM" in result.output


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A fresh clone of the clone in NANO_UPSTREAM_DIR."""
    place = os.environ.get("NANO_UPSTREAM_DIR")
    if not place:
        pytest.skip("NANO_UPSTREAM_DIR is not set: no clone of upstream nano-vLLM to test with")
    assert git("clone", "-q", place, str(tmp_path / "nano-vllm"), cwd=tmp_path).returncode == 0
    return tmp_path / "nano-vllm"


def test_upstream_at_the_pin_passes_and_an_edit_does_not(upstream: Path) -> None:
    assert git("checkout", "-q", "--detach", UPSTREAM_PIN, cwd=upstream).returncode == 0
    assert run(SCRIPT, "upstream", "--dir", upstream).exit_code == 0
    (upstream / "nanovllm" / "config.py").write_text("x = 1\n")
    (upstream / "nanovllm" / "mine.py").write_text("x = 1\n")
    result = run(SCRIPT, "upstream", "--dir", upstream)
    assert result.exit_code == 1
    assert "changed  nanovllm/config.py" in result.stdout and "added    nanovllm/mine.py" in result.stdout


def test_upstream_at_another_commit_names_both(upstream: Path) -> None:
    assert git("checkout", "-q", "--detach", f"{UPSTREAM_PIN}~3", cwd=upstream).returncode == 0
    result = run(SCRIPT, "upstream", "--dir", upstream)
    assert (
        result.exit_code == 1 and f"the pin is {UPSTREAM_PIN}" in result.stdout and "checkout --detach" in result.stdout
    )


def test_a_clone_without_the_pin_says_how_to_get_it(tmp_path: Path) -> None:
    clone = tmp_path / "nano-vllm"
    (clone / "nanovllm" / "engine").mkdir(parents=True)
    (clone / "nanovllm" / "engine" / "scheduler.py").write_text("x = 1\n")
    assert "is no git clone" in run(SCRIPT, "upstream", "--dir", clone).output
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "other"]):
        done = git("-c", "user.name=t", "-c", "user.email=t@localhost.invalid", *command, cwd=clone, isolated=True)
        assert done.returncode == 0
    result = run(SCRIPT, "upstream", "--dir", clone)
    assert result.exit_code == 2 and f"fetch origin {UPSTREAM_PIN}" in result.output
