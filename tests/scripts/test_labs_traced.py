"""Lab 03 and analyze.py together, as the manual uses them: log to a file, check it, read the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_scripts import block_of, load_script, run

trace = load_script("labs/03_trace_engine.py")
analyze = load_script("e2e/analyze.py")


@pytest.fixture(scope="module")
def logs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with lifecycle.log, chunk.log and prefix.log (stdout only, as `| tee` keeps it)."""
    place = tmp_path_factory.mktemp("logs")
    for case in ("lifecycle", "chunk", "prefix"):
        result, block = block_of(trace, place / f"{case}.json", "--case", case, "--shapes", "--model", tiny_model)
        assert block["check"] == "COLLECTED"
        (place / f"{case}.log").write_text(result.stdout, "utf-8")
    return place


def test_stdout_is_json_lines_and_nothing_else(logs: Path) -> None:
    for case in ("lifecycle", "chunk", "prefix"):
        events = [json.loads(line) for line in (logs / f"{case}.log").read_text("utf-8").splitlines()]
        assert events[0]["event"] == "run"
        assert events[0]["case"] == case
        assert events[-1]["event"] == "end"


def test_verdict_and_announcement_go_to_stderr(tiny_model: Path) -> None:
    result = run(trace, "--case", "lifecycle", "--model", tiny_model)
    assert result.stderr.splitlines()[-1] == "COLLECTED"
    assert "engine=bundled  device=cpu  attention=torch" in result.stderr
    assert "model_shape" not in result.stdout


def test_the_block_counts_what_the_log_shows(logs: Path) -> None:
    counts = {case: json.loads((logs / f"{case}.json").read_text("utf-8"))["result"] for case in ("lifecycle", "chunk")}
    assert counts["lifecycle"] == {"case": "lifecycle", "steps": 3, "output_counts": {"A": 2, "B": 3}}
    assert counts["chunk"]["steps"] == 3


@pytest.mark.parametrize(
    ("name", "case", "table"),
    [
        ("lifecycle", "lifecycle", 6),
        ("chunk", "chunk", 6),
        ("prefix", "prefix", 6),
        ("slots", "lifecycle", None),
        ("runner", "lifecycle", None),
        ("runner", "prefix", None),
        ("shapes", "lifecycle", None),
    ],
)
def test_analyze_passes_on_a_real_log(logs: Path, tmp_path: Path, name: str, case: str, table: int | None) -> None:
    out = tmp_path / f"{name}-check.json"
    result, block = block_of(analyze, out, name, "--log", logs / f"{case}.log")
    assert block["check"] == "PASS", result.output
    assert block["evidence"] == "cpu-engine"
    assert block["engine"]["kind"] == "bundled"
    assert block["model"]["synthetic"] is True
    assert all(check["ok"] for check in block["result"]["checks"])
    tsv = out.with_suffix(".tsv")
    assert tsv.is_file() is (table is not None)
    if table:
        assert len(tsv.read_text("utf-8").splitlines()) == table


def test_analyze_fails_on_a_wrong_log(logs: Path, tmp_path: Path) -> None:
    text = (
        (logs / "prefix.log").read_text("utf-8").replace('"cached":512,"scheduled":108', '"cached":256,"scheduled":364')
    )
    (tmp_path / "wrong.log").write_text(text, "utf-8")
    result, block = block_of(analyze, tmp_path / "w.json", "prefix", "--log", tmp_path / "wrong.log")
    assert block["check"] == "FAIL"
    assert "BAD  B's first step, cached: saw 256, expected 512" in result.stdout


def test_a_log_cut_short_points_at_the_traceback(logs: Path, tmp_path: Path) -> None:
    lines = (logs / "lifecycle.log").read_text("utf-8").splitlines()[:5]
    (tmp_path / "cut.log").write_text(
        "\n".join([*lines, "Traceback (most recent call last):", "KeyError: 1", ""]), "utf-8"
    )
    result = run(analyze, "lifecycle", "--log", tmp_path / "cut.log", "--out", tmp_path / "c.json")
    assert result.exit_code == 2
    assert "Traceback at line 6" in result.output
    assert not (tmp_path / "c.json").exists()


def test_a_broken_line_is_named(logs: Path, tmp_path: Path) -> None:
    lines = (logs / "chunk.log").read_text("utf-8").splitlines()
    (tmp_path / "broken.log").write_text("\n".join([*lines[:3], lines[3][:-5]]), "utf-8")  # a killed run
    result = run(analyze, "chunk", "--log", tmp_path / "broken.log")
    assert result.exit_code == 2
    assert "line 4 is broken" in result.output


def test_shapes_without_the_option_names_it(tiny_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "plain.log"
    log.write_text(run(trace, "--case", "lifecycle", "--model", tiny_model).stdout, "utf-8")
    result = run(analyze, "shapes", "--log", log)
    assert result.exit_code == 2
    assert "no model_shape event" in result.output
    assert "--case lifecycle --shapes" in result.output
