"""The commands of chapter 6 that use vLLM's community build, run as a reader runs them, in a scratch copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanolab.evidence import repo_root
from nanolab.manual import commands, runner

SECTIONS = (
    "install-cpu",
    "offline-cpu",
    "stream",
    "ask",
    "load-lab",
    "load-vllm",
    "report",
    "bench",
    "bench-lab",
    "bench-check",
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory, vllm_venv: Path) -> runner.Scratch:
    """The sections run in their order in one copy, whose .venv-vllm is the environment that exists."""
    copy = runner.prepare(repo_root(), tmp_path_factory.mktemp("copy") / "work")
    (copy.tree / ".venv-vllm").symlink_to(vllm_venv)
    return copy


@pytest.mark.parametrize("name", SECTIONS)
def test_section(name: str, scratch: runner.Scratch) -> None:
    sections = commands.load(repo_root())
    section = commands.find(sections, f"6-vllm:{name}")
    (outcome,) = runner.run(scratch, [section], sections)
    assert not outcome.problem, f"{outcome.problem}\n{runner.tail(outcome.log, 40)}"
