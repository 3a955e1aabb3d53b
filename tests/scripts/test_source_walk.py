"""source_walk.py: verify on every kind of engine; excerpts by symbol with the real line numbers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from engine_scripts import ROOT, load_script, run

from nanolab.patches import create, find_patch, put
from nanolab.source_walk import TOPICS

SCRIPT = load_script("e2e/source_walk.py")
TOPIC_NAMES = ["engine", "scheduler", "blocks", "runner", "model", "kernels"]
HEADING = re.compile(r"^== (\S+):(\d+)-(\d+)  (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("walk") / "engine"
    create(place)
    return place


@pytest.fixture(scope="module")
def upstream() -> Path:
    place = os.environ.get("NANO_UPSTREAM_DIR")
    if not place:
        pytest.skip("NANO_UPSTREAM_DIR is not set: no clone of upstream nano-vLLM to test with")
    return Path(place)


def check_numbers(output: str, root: Path) -> int:
    """Every numbered line of every excerpt is that line of the file; returns how many there were."""
    seen = 0
    for block in output.split("\n== "):
        heading = HEADING.match(block if block.startswith("== ") else "== " + block)
        if not heading:
            continue
        lines = (root / heading[1]).read_text("utf-8").splitlines()
        shown = re.findall(r"^ *(\d+) \|(?: (.*))?$", block, re.MULTILINE)
        assert [int(number) for number, _ in shown] == list(range(int(heading[2]), int(heading[3]) + 1))
        for number, text in shown:
            assert lines[int(number) - 1].rstrip() == text
            seen += 1
    return seen


def test_the_six_topics_are_there() -> None:
    assert list(TOPICS) == TOPIC_NAMES


@pytest.mark.parametrize("topic", TOPIC_NAMES)
def test_excerpts_of_bundle_and_working_copy_carry_real_numbers(copy: Path, topic: str) -> None:
    for root in (ROOT / "src", copy):
        result = run(SCRIPT, topic, "--source", root)
        assert result.exit_code == 0, result.output
        assert check_numbers(result.stdout, root) > 60
        assert result.stdout.splitlines()[-1] == "PASS"
        notes = [line for line in result.stdout.splitlines() if re.match(r"^   \S", line)]
        assert sum(bool(re.search("[\u4e00-\u9fff]", note)) for note in notes) * 2 == len(notes), (
            "a note in each language"
        )


@pytest.mark.parametrize("topic", TOPIC_NAMES)
def test_excerpts_of_upstream_carry_real_numbers(upstream: Path, topic: str) -> None:
    result = run(SCRIPT, topic, "--source", upstream)
    assert result.exit_code == 0, result.output
    assert check_numbers(result.stdout, upstream) > 60


def test_model_holds_the_mapping_and_the_loader(copy: Path) -> None:
    output = run(SCRIPT, "model", "--source", copy).stdout
    assert "packed_modules_mapping" in output and "def load_model" in output


def test_model_of_upstream_too(upstream: Path) -> None:
    output = run(SCRIPT, "model", "--source", upstream).stdout
    assert "packed_modules_mapping" in output and "def load_model" in output


def test_verify_passes_on_the_pinned_sources(copy: Path) -> None:
    for root in (copy, ROOT / "src"):
        result = run(SCRIPT, "verify", "--source", root)
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines()[-2:] == ["SOURCE PASS", "PASS"]


def test_verify_passes_on_upstream_at_its_pin(upstream: Path) -> None:
    assert run(SCRIPT, "verify", "--source", upstream).stdout.splitlines()[-2:] == ["SOURCE PASS", "PASS"]


def test_an_applied_patch_is_a_change_and_reading_it_needs_consent(tmp_path: Path) -> None:
    root = tmp_path / "engine"
    create(root)
    put(find_patch("03"), root, reverse=False)
    result = run(SCRIPT, "verify", "--source", root)
    assert result.exit_code == 1
    assert "changed  nanoengine/config.py  +1 -0" in result.stdout and "SOURCE PASS" not in result.stdout
    assert f"git -C {root} diff" in result.stdout
    assert run(SCRIPT, "verify", "--source", root, "--allow-modified").exit_code == 3
    refused = run(SCRIPT, "scheduler", "--source", root)
    assert refused.exit_code == 2 and f"scheduler --source {root} --allow-modified" in refused.output
    shown = run(SCRIPT, "scheduler", "--source", root, "--allow-modified")
    assert shown.exit_code == 0 and "Scheduler.select_decode" in shown.stdout
    put(find_patch("03"), root, reverse=True)
    assert run(SCRIPT, "verify", "--source", root).exit_code == 0


def test_without_git_a_working_copy_is_refused_in_words(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(copy))
    result = run(SCRIPT, "verify", "--source", copy)
    assert result.exit_code == 2 and "git is not installed" in result.output


def test_a_renamed_symbol_and_broken_python_are_named(tmp_path: Path) -> None:
    root = tmp_path / "engine"
    create(root)
    path = root / "nanoengine" / "engine" / "scheduler.py"
    text = path.read_text()
    path.write_text(text.replace("def preempt(", "def push_back("))
    renamed = run(SCRIPT, "scheduler", "--source", root, "--allow-modified")
    assert renamed.exit_code == 2 and "engine/scheduler.py: Scheduler.preempt" in renamed.output
    path.write_text(text + "\ndef broken(:\n")
    broken = run(SCRIPT, "scheduler", "--source", root, "--allow-modified")
    assert broken.exit_code == 2 and "is not valid Python" in broken.output and "line " in broken.output


def test_a_place_without_an_engine(tmp_path: Path) -> None:
    result = run(SCRIPT, "verify", "--source", tmp_path)
    assert result.exit_code == 2 and "engine_source.py init" in result.output
