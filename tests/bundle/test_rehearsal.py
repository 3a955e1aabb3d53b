"""Following the manual from the zip alone, in an empty home."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bundle_lab import Package

from nanolab.bundle import rehearsal
from nanolab.errors import LabError
from nanolab.manual import commands

# One of each kind: the whole of setup, the real engine, a patch applied and reverted, arithmetic, a log read.
CHOSEN = ("5-1-setup", "5-2-requests-and-kv:patch-revert", "b-1-mathematics:attention", "b-2-logs:chunk-check")


def test_the_path_is_that_of_the_manual(package: Package) -> None:
    files = {section.file for section in commands.load(package.tree)}
    refs = {section.ref for section in commands.load(package.tree)}
    assert {"5-1-setup", "5-2-requests-and-kv", "b-1-mathematics", "b-2-logs"} <= files & set(rehearsal.PATH)
    assert {rehearsal.UNZIP, *rehearsal.INSTALL} <= refs
    assert {name for name in CHOSEN if ":" in name} <= refs


def test_the_manuals_unzip_never_overwrites(package: Package, tmp_path: Path) -> None:
    """`guard` runs the manual's own command twice: into the empty home, then over an edited file."""
    home = tmp_path / "home"
    found = rehearsal.rehearse(package.zip, home, ["5-1-setup:enter"], venv=False, say=lambda line: None)
    assert found == []


def test_an_unzip_that_overwrites_is_caught(package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = commands.find

    def careless(sections: list[commands.Section], ref: str) -> commands.Section:
        section = real(sections, ref)
        if ref != rehearsal.UNZIP:
            return section
        body = section.body.replace("test ! -e nanovllm-inference-lab && unzip -q", "unzip -qo")
        assert body != section.body
        return commands.Section(section.file, section.name, section.line, body, section.tier)

    monkeypatch.setattr(commands, "find", careless)
    found = rehearsal.rehearse(package.zip, tmp_path / "home", ["5-1-setup:enter"], venv=False, say=lambda line: None)
    assert any("overwrote an edited file" in line for line in found)


def test_a_home_with_something_in_it_is_refused(package: Package, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(LabError, match="is not empty"):
        rehearsal.rehearse(package.zip, tmp_path, [], venv=False, say=print)


def test_a_failing_command_is_reported(package: Package, tmp_path: Path) -> None:
    tree = tmp_path / "lab"
    shutil.copytree(package.tree, tree)
    (tree / "docs/commands/5-1-setup.sh").write_text(
        "# tier: cpu\n# needs: no-model\n# --8<-- [start:fails]\nexit 3\n# --8<-- [end:fails]\n"
    )
    for other in (tree / "docs/commands").glob("*.sh"):
        if other.name != "5-1-setup.sh":
            other.unlink()
    said: list[str] = []
    assert rehearsal.follow(tree, tmp_path / "logs", ["5-1-setup", "5-9-not-written"], said.append) == 1
    assert any("exit code 3, expected 0" in line for line in said)


@pytest.mark.slow
def test_the_cpu_path_holds_from_the_zip_alone(
    package: Package, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ends with `sha256sum -c` over the tree in which the commands ran. The whole path: `bundle.py rehearse --venv`."""
    found = rehearsal.rehearse(package.zip, tmp_path / "home", CHOSEN, venv=False, say=lambda line: None)
    assert found == [], capfd.readouterr().out[-6000:]
