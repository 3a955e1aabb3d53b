"""Load in this process: wall mode records both observers, round mode is the same on every run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nanolab.errors import LabError
from nanolab.load.runs import LoadOptions, LoadSummary, run_in_process
from nanolab.load.sender import lateness_of
from nanolab.load.trace import write_trace
from nanolab.serving.eventlog import Log, read_log
from nanolab.serving.events import Admitted, Chunk, Ended, Event, Finished, Reason, Sent, Step, Token
from nanolab.serving.launch import EngineOptions

from .helpers import check_client_lives, trace_request

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
SIMULATED = EngineOptions(simulated=True, simulated_step_ms=0.5)


def run(tmp_path: Path, name: str = "log", **changes: object) -> tuple[LoadSummary, Log]:
    options = LoadOptions(trace=WORKLOADS / "mixed.jsonl", out=tmp_path / f"{name}.jsonl", engine=SIMULATED)
    options = replace(options, **changes)  # type: ignore[arg-type]
    summary = run_in_process(options, lambda **facts: None)
    return summary, read_log(options.out)


def test_wall_mode_records_both_observers_and_lists_the_warmup(tmp_path: Path) -> None:
    summary, log = run(tmp_path)
    assert not log.is_partial
    assert summary.ends == {"length": 12}
    assert log.header.warmup == ["warmup-0", "warmup-1"]
    assert (log.header.simulated, log.header.round_injected, log.header.profile) == (True, False, False)
    assert log.header.evidence == "cpu-simulation"
    client = [event for event in log.events if event.observer == "client"]
    check_client_lives(client)
    tokens = [event for event in log.events if isinstance(event, Token)]
    seen = sum(event.tokens or 0 for event in client if isinstance(event, Chunk))
    assert seen == len(tokens) == 768 + 16
    assert {type(event) for event in log.events if event.observer == "engine"} >= {Admitted, Step, Token, Finished}


def test_warmup_ends_before_the_first_measured_request_is_sent(tmp_path: Path) -> None:
    _, log = run(tmp_path)
    ends = [event.t_ns for event in log.events if isinstance(event, Ended) and event.request_id in log.header.warmup]
    sends = [
        event.t_ns for event in log.events if isinstance(event, Sent) and event.request_id not in log.header.warmup
    ]
    assert max(ends) <= min(sends)


def shape(event: Event) -> tuple[object, ...]:
    """An event without its times."""
    details: tuple[object, ...] = ()
    if isinstance(event, Step):
        details = (event.phase, tuple(row[:4] for row in event.batch), event.waiting, event.running, event.free_blocks)
    elif isinstance(event, Token):
        details = (event.index, event.token)
    elif isinstance(event, Finished):
        details = (event.reason, event.output_tokens)
    return type(event).__name__, event.request_id, event.round, event.step, *details


def test_round_mode_is_the_same_on_every_run(tmp_path: Path) -> None:
    runs = [run(tmp_path, f"round{index}", mode="round")[1] for index in range(2)]
    assert [shape(event) for event in runs[0].events] == [shape(event) for event in runs[1].events]
    assert runs[0].header.round_injected
    assert sum(isinstance(event, Finished) for event in runs[0].events) == 14


def test_round_mode_injects_and_cancels_at_exact_rounds(tmp_path: Path) -> None:
    requests = [
        trace_request("a", round=1, output=10),
        trace_request("b", round=4, output=10, cancel_after_tokens=3),
        trace_request("c", round=9, output=2),
    ]
    write_trace(tmp_path / "t.jsonl", requests)
    summary, log = run(tmp_path, mode="round", trace=tmp_path / "t.jsonl", warmup=0)
    admitted = {event.request_id: event.round for event in log.events if isinstance(event, Admitted)}
    assert admitted == {"a": 1, "b": 4, "c": 9}
    ends = {event.request_id: event for event in log.events if isinstance(event, Finished)}
    assert (ends["b"].reason, ends["b"].output_tokens) == (Reason.CANCELLED, 3)
    assert summary.ends == {"length": 2, "cancelled": 1}


def test_a_slow_reader_in_a_trace_delays_only_itself(tmp_path: Path) -> None:
    requests = [trace_request("slow", output=20, read_delay_ms=20.0), trace_request("quick", output=20)]
    write_trace(tmp_path / "t.jsonl", requests)
    _, log = run(tmp_path, trace=tmp_path / "t.jsonl")
    chunks = [event for event in log.events if isinstance(event, Chunk) and event.request_id == "slow"]
    assert sum(event.tokens or 0 for event in chunks) == 20
    assert len(chunks) < 20  # what waited was read together
    engine_ends = {event.request_id: event.t_ns for event in log.events if isinstance(event, Finished)}
    client_ends = {event.request_id: event.t_ns for event in log.events if isinstance(event, Ended)}
    assert client_ends["quick"] < client_ends["slow"]
    assert engine_ends["quick"] < client_ends["slow"]


def test_a_sender_that_lagged_makes_the_run_invalid() -> None:
    def sent(late_ms: float) -> Sent:
        return Sent(
            request_id="r",
            worker_id=None,
            round=None,
            step=None,
            t_ns=int(late_ms * 1e6),
            planned_ns=0,
            prompt_tokens=1,
            max_tokens=1,
            observer="client",
        )

    on_time = lateness_of([sent(1.0)] * 200)
    assert on_time is not None
    assert (on_time.is_within(20), on_time.p99_ms) == (True, 1.0)
    one_late = lateness_of([sent(1.0)] * 199 + [sent(900.0)])
    assert one_late is not None
    assert one_late.is_within(20)  # one of 200 is above p99; the maximum is still shown
    few = lateness_of([sent(1.0), sent(900.0)])
    assert few is not None
    assert (few.is_within(20), few.p99_ms) == (False, None)
    assert lateness_of([]) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mode": "batch"}, "choose wall or round"),
        ({"mode": "round", "profile_dir": Path("x")}, "needs --mode wall"),
        ({"engine": EngineOptions()}, "no model directory"),
        ({"engine": EngineOptions(simulated=True, policy="fifo")}, "'fifo'; choose one of prefill_first, balanced"),
        ({"engine": EngineOptions(simulated=True, tp=2)}, "--tp 1 only"),
        ({"engine": EngineOptions(simulated=True, batch_tokens=0)}, "batch_tokens is 0; it must be at least 1"),
        ({"engine": EngineOptions(simulated=True, batch_seqs=0)}, "batch_seqs is 0; it must be at least 1"),
        ({"engine": EngineOptions(simulated=True, simulated_step_ms=-1.0)}, "--simulated-step-ms is -1"),
        ({"max_active": 0}, "max_active is 0; it must be at least 1"),
        ({"mode": "round", "round_ms": 0.0}, "--round-ms is 0; it must be more than 0"),
        ({"engine": EngineOptions(simulated=True, max_model_len=512)}, "exceed the context of 512"),
    ],
)
def test_bad_choices_are_named_before_anything_runs(changes: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=says):
        run(tmp_path, **changes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["wall", "round"])
def test_warmup_ids_may_not_clash_with_the_trace(mode: str, tmp_path: Path) -> None:
    write_trace(tmp_path / "t.jsonl", [trace_request("warmup-0")])
    with pytest.raises(LabError, match="uses the warm-up's request ids"):
        run(tmp_path, trace=tmp_path / "t.jsonl", mode=mode)
