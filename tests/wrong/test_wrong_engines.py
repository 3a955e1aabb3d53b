"""Every engine that is wrong on purpose is caught by the check that is named for it; the right one passes them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanolab.errors import LabError
from nanolab.evidence import repo_root
from nanolab.patches import build_baseline
from nanolab.patches.baseline import copy_engine
from nanolab.sources import EngineSource, resolve

from .checks import CHECKS, NEEDS_BALANCED
from .engines import WRONG, Wrong


def findings(check: str, source: EngineSource) -> list[str]:
    """What the check says; an engine that stops with an exception says that."""
    try:
        return CHECKS[check](source)
    except (LabError, IndexError, KeyError, ValueError, AssertionError) as error:
        return [f"stopped with {type(error).__name__}: {error}"]


def test_there_are_at_least_the_eight_that_the_lab_promises() -> None:
    assert len(WRONG) >= 8
    assert len({wrong.name for wrong in WRONG}) == len(WRONG)
    assert {wrong.check for wrong in WRONG} == set(CHECKS), "every check catches something"


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name.replace(" ", "-"))
def test_a_wrong_engine_is_caught_by_name(tmp_path: Path, wrong: Wrong) -> None:
    copy_engine(repo_root() / "src", tmp_path)
    wrong.write(tmp_path / "nanoengine")
    found = findings(wrong.check, EngineSource("working-copy", tmp_path, "nanoengine"))
    assert any(wrong.says in line for line in found), f"{wrong.check} should say {wrong.says!r}, it says {found[:5]}"


@pytest.mark.parametrize("check", CHECKS)
def test_the_bundled_engine_passes(check: str) -> None:
    assert findings(check, resolve(repo_root() / "src")) == []


@pytest.mark.parametrize("check", sorted(set(CHECKS) - NEEDS_BALANCED))
def test_the_baseline_passes(tmp_path_factory: pytest.TempPathFactory, check: str) -> None:
    tree = tmp_path_factory.getbasetemp() / "wrong-baseline"
    if not tree.exists():
        build_baseline(tree)
    assert findings(check, EngineSource("working-copy", tree, "nanoengine")) == []
