"""Engines at every point of the patch stack, built once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nanolab.patches import build_baseline, put, read_series
from nanolab.patches.git import git
from nanolab.sources import EngineSource

NAMES = ("01-step-trace", "02-graph-eager-fallback", "03-fair-scheduler", "04-replica-isolation")
Variant = Callable[..., EngineSource]


@pytest.fixture(scope="session")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    """`variant("01", "03")`: the baseline with these patches, as an engine source; `variant()` is the baseline."""
    made: dict[tuple[str, ...], EngineSource] = {}

    def make(*numbers: str) -> EngineSource:
        if numbers not in made:
            tree = build_baseline(tmp_path_factory.mktemp("engine-" + "".join(numbers)))
            for patch in read_series():
                if patch.number in numbers:
                    put(patch, tree, reverse=False)
            made[numbers] = EngineSource("working-copy", tree, "nanoengine")
        return made[numbers]

    return make


@pytest.fixture
def lab_root(tmp_path: Path) -> Path:
    """A small lab: src/nanoengine and patches/, committed to a repository of its own, for tests that edit them."""
    from shutil import copytree, ignore_patterns

    from nanolab.evidence import repo_root

    root = tmp_path / "lab"
    copytree(repo_root() / "src" / "nanoengine", root / "src" / "nanoengine", ignore=ignore_patterns("__pycache__"))
    copytree(repo_root() / "patches", root / "patches")
    for command in (["init", "-q"], ["add", "-A"], [*IDENTITY, "commit", "-q", "-m", "start"]):
        done = git(*command, cwd=root, isolated=True)
        assert done.returncode == 0, done.stderr
    return root


IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost.invalid")
