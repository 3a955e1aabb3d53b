"""The forge's workflow calls make targets that exist, and publishes the directory that the build writes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from nanolab.evidence import repo_root

ROOT = repo_root()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
TARGETS = set(re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def faults(workflow: dict[str, Any]) -> list[str]:
    """The command lines that are not `make TARGET...` with targets of the Makefile."""
    lines = [line.split() for step in steps(workflow) for line in step.get("run", "").splitlines() if line.strip()]
    return [" ".join(line) for line in lines if line[0] != "make" or not line[1:] or not TARGETS.issuperset(line[1:])]


def load() -> dict[str, Any]:
    assert len(WORKFLOWS) == 1
    workflow: dict[str, Any] = yaml.safe_load(WORKFLOWS[0].read_text(encoding="utf-8"))
    return workflow


def test_every_command_is_a_make_target() -> None:
    workflow = load()
    assert faults(workflow) == []
    assert [step["run"] for step in steps(workflow) if "run" in step] == ["make test", "make site"]


@pytest.mark.parametrize("command", ["make tests", "make", "pytest", "make test\nmkdocs build"])
def test_another_command_is_seen(command: str) -> None:
    assert len(faults({"jobs": {"one": {"steps": [{"run": command}, {"run": "make test"}]}}})) == 1


def test_what_is_published_holds_both_languages() -> None:
    upload = next(step for step in steps(load()) if "upload-pages-artifact" in step.get("uses", ""))
    for config, directory in (("mkdocs.yml", "site"), ("mkdocs.en.yml", "site/en")):
        text = (ROOT / config).read_text(encoding="utf-8")
        assert re.search(rf"^site_dir: {directory}$", text, re.MULTILINE)
        assert (ROOT / directory).is_relative_to(ROOT / upload["with"]["path"])
