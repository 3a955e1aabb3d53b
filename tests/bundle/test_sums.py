"""SHA256SUMS: what it lists, what it catches, and that sha256sum agrees."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from bundle_lab import git, load_program, repository, write
from click.testing import CliRunner, Result

from nanolab.bundle import sums, tree
from nanolab.errors import LabError

FILES = {"README.md": "r\n", "src/a.py": "a\n", "docs/手册.md": "字\n", "runs/old.json": "{}\n", "notes/n.md": "n\n"}
LISTED = ["README.md", "docs/手册.md", "src/a.py"]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A repository that also tracks, wrongly, what runs create."""
    return repository(tmp_path / "lab", FILES)


def run(lab: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    program = load_program()
    monkeypatch.setattr(program, "repo_root", lambda: lab)
    return CliRunner().invoke(program.main, ["sums", *arguments])


def test_lists_what_git_tracks_and_not_what_runs_create(lab: Path) -> None:
    write(lab, {"untracked.txt": "x", "engine/e.py": "x", "models/m": "x"})
    assert list(sums.listing(lab)) == LISTED


def test_without_git_residue_is_left_out(tmp_path: Path) -> None:
    residue = (".venv-nano/pyvenv.cfg", "src/__pycache__/a.pyc", "src/n.egg-info/PKG-INFO", "engine/x", "models/y")
    write(tmp_path, FILES | dict.fromkeys(residue, "x"))
    assert list(sums.listing(tmp_path)) == LISTED


def test_an_enclosing_repository_does_not_count(lab: Path) -> None:
    inner = lab / "unpacked"
    write(inner, {"a": "1", "b/c": "2"})
    assert not tree.is_repository(inner)
    assert list(sums.listing(inner)) == ["a", "b/c"]


def test_sha256sum_agrees(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(lab, monkeypatch).exit_code == 0
    done = subprocess.run(["sha256sum", "-c", sums.NAME], cwd=lab, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": OK") == len(LISTED)


def test_check_names_what_differs_is_missing_and_is_not_listed(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(lab, monkeypatch).exit_code == 0
    git(lab, "add", sums.NAME)
    assert run(lab, monkeypatch, "--check").exit_code == 0
    write(lab, {"src/a.py": "b\n", "src/new.py": "n\n", "runs/old.json": "{1}", "notes/n.md": "mine"})
    (lab / "README.md").unlink()
    git(lab, "add", "src/new.py")
    done = run(lab, monkeypatch, "--check")
    assert done.exit_code == 1
    assert done.output.splitlines()[:3] == ["README.md is missing", "src/a.py differs", "src/new.py is not listed"]
    assert done.output.splitlines()[-1] == "FAIL"


def test_check_without_a_file_says_so_for_each(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(lab, monkeypatch, "--check")
    assert done.exit_code == 1
    assert "README.md is not listed" in done.output


def test_a_line_that_is_no_sum_is_an_error() -> None:
    with pytest.raises(LabError, match="SHA256SUMS:2 is not"):
        sums.parse("0" * 64 + "  a\nnonsense\n")


def test_the_order_is_that_of_the_bytes() -> None:
    digest = "0" * 64
    text = sums.render({"实.md": digest, "a": digest, "Z": digest})
    assert [line[66:] for line in text.splitlines()] == ["Z", "a", "实.md"]
    assert sums.parse(text) == {"实.md": digest, "a": digest, "Z": digest}
    with pytest.raises(LabError, match="newline"):
        sums.render({"a\nb": digest})


def test_what_is_not_committed_is_named(lab: Path) -> None:
    assert tree.uncommitted(lab) == []
    write(lab, {"src/a.py": "b\n", "untracked": "x"})
    assert tree.uncommitted(lab) == ["src/a.py"]


def test_an_export_holds_the_commit_and_its_date(lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    write(lab, {"src/a.py": "changed, not committed\n"})
    export = tree.export(lab, tmp_path / "out")
    assert (export.root / "src/a.py").read_text() == "a\n"
    assert export.commit == git(lab, "rev-parse", "HEAD").strip()
    assert str(export.epoch) == git(lab, "log", "-1", "--format=%ct").strip()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    assert tree.export(lab, tmp_path / "again").epoch == 1767225600


def test_outside_git_a_date_must_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "lab", FILES)
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    with pytest.raises(LabError, match="SOURCE_DATE_EPOCH"):
        tree.export(tmp_path / "lab", tmp_path / "out")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    export = tree.export(tmp_path / "lab", tmp_path / "again")
    assert (export.commit, export.epoch) == ("", 1767225600)
    assert (export.root / "docs/手册.md").is_file()
