"""The picture of a recorded run: it shows what its log says, names the log, and refuses any other kind of log."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from nanolab.errors import LabError
from nanolab.figures.canvas import Canvas
from nanolab.figures.requests import RecordedRun, Span, joined, read_run, request_timeline
from nanolab.serving.eventlog import EventLog, read_log
from nanolab.serving.events import Admitted, Event, Finished, Reason, RunHeader, Step, Submitted, Token

ROOT = Path(__file__).resolve().parents[2]
MS = 1_000_000


def stamp(name: str | None, ms: float) -> dict[str, Any]:
    return {"request_id": name, "worker_id": "w", "round": 1, "step": 1, "t_ns": int(ms * MS)}


def step(phase: str, begin: float, end: float, *names: str) -> Step:
    rows = [(name, 3, 0, 3, [0]) for name in names]
    return Step(
        **stamp(None, end), phase=phase, started_ns=int(begin * MS), batch=rows, waiting=0, running=1, free_blocks=1
    )


def life(name: str, arrival: float, admitted: float, tokens: list[float], request_class: str) -> list[Event]:
    return [
        Submitted(**stamp(name, arrival), prompt_tokens=3, max_tokens=len(tokens), request_class=request_class),
        Admitted(**stamp(name, admitted), active=0),
        *(Token(**stamp(name, ms), index=index, token=7) for index, ms in enumerate(tokens, 1)),
        Finished(**stamp(name, tokens[-1]), reason=Reason.LENGTH, output_tokens=len(tokens)),
    ]


EVENTS: list[Event] = [
    *life("warm", 1, 2, [3], "short"),
    step("prefill", 2, 3, "warm"),
    *life("long", 100, 110, [140, 160], "long"),
    *life("late", 120, 145, [150], "short"),
    step("prefill", 110, 125, "long"),
    step("prefill", 125, 140, "long"),
    step("prefill", 145, 150, "late"),
    step("decode", 150, 160, "long"),
]


def recorded(tmp_path: Path, events: list[Event] = EVENTS, complete: bool = True, **marks: Any) -> Path:
    path = tmp_path / "run.jsonl"
    header = RunHeader(run_id="r", started_at="2026-01-01T00:00:00Z", versions={}, warmup=["warm"], **marks)
    log = EventLog(path, msgspec.structs.replace(header, config={"policy": "prefill_first", "execution": "eager"}))
    log.write(sorted(events, key=lambda event: event.t_ns))
    log.close(complete=complete, note=None if complete else "cut on purpose")
    return path


def test_lanes_are_the_logs_own_times_without_the_warmup(tmp_path: Path) -> None:
    run = read_run(read_log(recorded(tmp_path)))
    long, late = run.lanes
    assert [lane.request_id for lane in run.lanes] == ["long", "late"]
    assert (long.is_long, long.submitted, long.admitted, long.ended) == (True, 0, 10, 60)
    assert long.spans == [Span("prefill", 10, 25), Span("prefill", 25, 40), Span("decode", 50, 60)]
    assert long.tokens == [40, 60]  # none under the first chunk
    assert (late.submitted, late.admitted, late.spans) == (20, 45, [Span("prefill", 45, 50)])
    assert run.beginning() == ([long, late], 50)


def test_only_steps_of_one_phase_that_follow_each_other_are_joined() -> None:
    spans = [Span("prefill", 0, 2), Span("decode", 2, 3), Span("decode", 3.5, 5), Span("decode", 9, 10)]
    assert joined(spans, 1) == [Span("prefill", 0, 2), Span("decode", 2, 5), Span("decode", 9, 10)]


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_picture_names_its_log_and_shows_every_step(tmp_path: Path, language: str) -> None:
    run = read_run(read_log(recorded(tmp_path)))
    canvas = Canvas("requests", language)
    request_timeline(canvas, run)
    assert canvas.overlaps() == []
    source = canvas.svg()
    assert all(word in source for word in (run.mark, "prefill_first", "eager")) and "None" not in source
    drawing = source.split("</style>")[1]
    legend = 1
    assert drawing.count("s-warm") == legend + 3 + 2  # three steps above; below, two chunks are one span
    assert drawing.count("s-accent") == legend + 1  # the decode step begins where the upper part ends
    assert "#" not in drawing


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"complete": False}, "cut on purpose"),
        ({"round_injected": True}, "injected by round"),
        ({"events": [event for event in EVENTS if not isinstance(event, Step)]}, "not every request was computed"),
    ],
)
def test_a_log_that_shows_something_else_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(LabError, match=says):
        read_run(read_log(recorded(tmp_path, **options)))


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("script_figures", ROOT / "scripts/maintain/figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_the_log_of_the_block_beside_it_is_drawn(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = recorded(tmp_path)
    words = ["requests", str(log), "--dir", str(tmp_path)]
    refused = CliRunner().invoke(script.main, words)
    assert refused.exit_code == 2 and "prefill-first-gpu.json was made of log" in refused.stderr
    assert not list(tmp_path.glob("*.svg"))

    run: RecordedRun = read_run(read_log(log))
    monkeypatch.setattr(script, "recorded_mark", lambda: run.mark)
    assert len(script.other_runs(tmp_path)) == 2
    assert CliRunner().invoke(script.main, words).exit_code == 0
    assert script.other_runs(tmp_path) == []
    monkeypatch.setattr(script, "recorded_mark", lambda: "0123456789ab")
    assert "not drawn from log 0123456789ab" in script.other_runs(tmp_path)[0]
