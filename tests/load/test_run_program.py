"""scripts/practice/run.py as it is typed: what it prints last, its exit codes, and what it refuses."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("practice_run", ROOT / "scripts" / "practice" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def invoke(program: ModuleType, *words: object) -> Result:
    return CliRunner().invoke(program.main, [str(word) for word in words], env={"MODEL_DIR": ""})


def last_line(result: Result) -> str:
    return result.stdout.splitlines()[-1]


def test_the_subcommands_are_those_of_the_manual(program: ModuleType) -> None:
    assert set(program.main.commands) == {"simulate", "trace", "load", "serve", "client", "report", "timeline"}


def test_simulate_passes_and_marks_its_log(program: ModuleType, tmp_path: Path) -> None:
    result = invoke(program, "simulate", "--out", tmp_path / "runtime-cpu.jsonl")
    assert (result.exit_code, last_line(result)) == (0, "PASS")
    assert "8 of 8 scenarios hold" in result.stdout
    assert b'"simulated":true' in (tmp_path / "runtime-cpu.jsonl").read_bytes().splitlines()[0]


@pytest.mark.parametrize("command", ["load", "serve"])
def test_graphs_without_a_gpu_are_pending_and_leave_no_log(
    program: ModuleType, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A CPU engine runs eagerly whatever it is asked: its log must not say `graph`."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = ["--trace", ROOT / "workloads" / "mixed.jsonl"] if command == "load" else ["--port", 0]
    result = invoke(
        program, command, *words, "--model", tiny_model, "--source", ROOT / "src", "--graph", "--out", tmp_path / "g"
    )
    assert (result.exit_code, last_line(result)) == (4, "PENDING")
    assert "--graph replays CUDA graphs and torch sees no CUDA device; choose --eager here" in result.stderr
    assert not (tmp_path / "g").exists()


def test_trace_prints_the_manuals_numbers(program: ModuleType, tmp_path: Path) -> None:
    options = "--requests 12 --prompt-tokens 32 --long-prompt-tokens 768 --long-every 4 --max-tokens 64"
    words = f"{options} --interval-ms 40 --seed 17".split()
    result = invoke(program, "trace", "--out", tmp_path / "mixed.jsonl", *words)
    assert (result.exit_code, last_line(result)) == (0, "COLLECTED")
    numbers = "12 requests (3 long, 9 short), 2592 prompt tokens, 768 output tokens, last arrival 440 ms"
    assert numbers in result.stdout
    assert (tmp_path / "mixed.jsonl").read_bytes() == (ROOT / "workloads" / "mixed.jsonl").read_bytes()


def test_trace_imports_and_says_what_it_changed(program: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "azure.csv"
    source.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,5000,44\n")
    result = invoke(program, "trace", "--out", tmp_path / "t.jsonl", "--import", source, "--format", "azure")
    assert (result.exit_code, last_line(result)) == (0, "COLLECTED")
    assert "clipped 1 prompts and 0 outputs" in result.stdout


def test_load_report_and_timeline_in_a_row(program: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "load.jsonl"
    words = ["--trace", ROOT / "workloads" / "mixed.jsonl", "--warmup-requests", "2", "--simulated-step-ms", "0.5"]
    result = invoke(program, "load", "--simulated", *words, "--mode", "wall", "--out", log)
    assert (result.exit_code, last_line(result)) == (0, "COLLECTED"), result.output
    assert "12 requests: 12 length" in result.stdout
    assert "p99 not reported under 100 samples" in result.stdout
    result = invoke(program, "report", "--inputs", log, "--out", tmp_path / "report.json", "--slo-ttft-ms", "1000")
    assert (result.exit_code, last_line(result)) == (0, "COLLECTED"), result.output
    assert "load.jsonl: simulated, not averaged" in result.stdout
    assert "SLO 100.0%" in (tmp_path / "report.md").read_text()
    result = invoke(program, "timeline", "--input", log, "--out", tmp_path / "trace.json")
    assert (result.exit_code, last_line(result)) == (0, "PASS"), result.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("load --trace {mixed} --out {out} --endpoints http://127.0.0.1:9 --tp 2", "--tp belongs to the server"),
        ("load --trace {mixed} --out {out} --endpoints http://127.0.0.1:9 --policy balanced", "--policy belongs"),
        ("load --trace {mixed} --out {out} --endpoints http://127.0.0.1:9 --mode round", "--mode round needs"),
        ("load --trace {mixed} --out {out} --endpoints http://127.0.0.1:9", "does not answer"),
        ("load --trace {mixed} --out {out} --endpoints ,", "--endpoints is empty"),
        ("load --trace {mixed} --out {out} --endpoints http://127.0.0.1:9,http://127.0.0.1:9", ":9 twice"),
        ("load --trace {mixed} --out {out}", "no model directory: pass --model"),
        ("load --trace nowhere.jsonl --out {out} --simulated", "cannot read the trace nowhere.jsonl"),
        ("load --trace {mixed} --out {dir} --simulated", "is a directory"),
        ("client --endpoints http://127.0.0.1:9 --prompt a --out {out}", "does not answer"),
        ("client --endpoints http://a,http://b --prompt a --out {out}", "give one URL"),
        ("report --inputs nowhere.jsonl --out {dir}/r.json", "cannot read the event log nowhere.jsonl"),
        ("report --inputs {mixed} --out {dir}/r.json", "line 1 is not an event"),
        ("report --inputs , --out {dir}/r.json", "--inputs is empty"),
        ("timeline --input {mixed} --out {dir}/t.json", "line 1 is not an event"),
        ("trace --out {out} --requests 0", "--requests is 0"),
        ("trace --out {dir}", "cannot write the trace"),
    ],
)
def test_bad_input_is_exit_2_with_a_message_and_no_output(
    program: ModuleType, words: str, says: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    names = {"mixed": ROOT / "workloads" / "mixed.jsonl", "out": out, "dir": tmp_path}
    result = invoke(program, *words.format(**names).split())
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert list(tmp_path.iterdir()) == []
