"""Lifecycle, chunk, prefix, slots, runner, shapes: real logs pass, and each changed value is caught."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from log_events import Event, edited, moment, write

from nanolab import analyze
from nanolab.analyze import EventLog, Findings, read_log
from nanolab.errors import LabError

Trace = Callable[[str], list[Event]]
ANALYSES: dict[str, Callable[[EventLog], Findings]] = {
    "lifecycle": analyze.analyze_lifecycle,
    "chunk": analyze.analyze_chunk,
    "prefix": analyze.analyze_prefix,
    "slots": analyze.analyze_slots,
    "runner": analyze.analyze_runner,
    "shapes": analyze.analyze_shapes,
}
PAIRS = [
    *(("lifecycle", name) for name in ("lifecycle", "slots", "runner", "shapes")),
    *(("chunk", name) for name in ("chunk", "slots", "runner", "shapes")),
    *(("prefix", name) for name in ("prefix", "slots", "runner", "shapes")),
]


def findings(events: list[Event], name: str, tmp_path: Path) -> Findings:
    return ANALYSES[name](read_log(write(tmp_path / "a.log", *events)))


@pytest.mark.parametrize(("case", "name"), PAIRS)
def test_a_real_log_passes(trace: Trace, tmp_path: Path, case: str, name: str) -> None:
    found = findings(trace(case), name, tmp_path)
    assert found.checks
    assert found.wrong == []


def test_each_step_has_its_moments_in_order(trace: Trace) -> None:
    for case in ("lifecycle", "chunk", "prefix"):
        kinds = [e["event"] for e in trace(case) if e["event"] not in ("model_shape", "prefix_second_request")]
        steps = (len(kinds) - 2) // 4
        moments = ["before_schedule", "scheduled", "gpu_inputs", "after_postprocess"]
        assert kinds == ["run", *moments * steps, "end"]


def test_the_marker_comes_between_the_two_requests(trace: Trace) -> None:
    events = trace("prefix")
    place = next(i for i, event in enumerate(events) if event["event"] == "prefix_second_request")
    assert events[place - 1]["event"] == "after_postprocess"
    assert events[place - 1]["batch"][0]["status"] == "FINISHED"
    assert events[place + 1]["waiting"][0]["request"] == "B"


def test_a_middle_candidate_is_logged_and_not_accepted(trace: Trace) -> None:
    entry = moment(trace("chunk"), "after_postprocess", 1)["batch"][0]
    assert isinstance(entry["candidate"], int)
    assert (entry["accepted"], entry["outputs"]) == (None, 0)


def test_stated_values_are_checked_as_stated(trace: Trace, tmp_path: Path) -> None:
    """The expected sides, against the specification's numbers."""
    wanted = {c.name: c.expected for c in findings(trace("chunk"), "chunk", tmp_path).checks}
    assert wanted["round 2, cu_seqlens_q"] == [0, 188, 220]
    assert wanted["round 2, cu_seqlens_k"] == [0, 700, 732]
    wanted = {c.name: c.expected for c in findings(trace("lifecycle"), "runner", tmp_path).checks}
    assert wanted["prefill, input_shape"] == [160]
    assert wanted["first decode, positions"] == [64, 96]
    assert wanted["first decode, context_lens"] == [65, 97]
    assert wanted["prefill, last rows"] == [63, 159]
    wanted = {c.name: c.expected for c in findings(trace("prefix"), "prefix", tmp_path).checks}
    assert (wanted["B's first step, cached"], wanted["B's first step, scheduled"]) == (512, 108)
    assert wanted["positions"] == list(range(512, 620))


def test_shapes_of_the_real_model() -> None:
    """Qwen3-0.6B: the values printed in the manual."""
    from nanolab.analyze.shapes import expected_shapes, packed_rows
    from nanolab.observe import ModelDims

    dims = ModelDims(1024, 3072, 28, 16, 8, 128, 151936, "bfloat16")
    assert expected_shapes(dims, 160, 2) == {
        "embedding": [160, 1024],
        "qkv_proj": [160, 4096],
        "q": [160, 16, 128],
        "k": [160, 8, 128],
        "v": [160, 8, 128],
        "o_proj": [160, 1024],
        "gate_up_proj": [160, 6144],
        "down_proj": [160, 1024],
        "logits": [2, 151936],
    }
    assert expected_shapes(dims, 2, 2)["qkv_proj"] == [2, 4096]
    assert packed_rows(dims) == {"q": [0, 2048], "k": [2048, 3072], "v": [3072, 4096]}


# ---- changed values -------------------------------------------------------------------------------------


def change(kind: str, step: int, *path: Any, value: Any) -> Callable[[list[Event]], None]:
    def edit(events: list[Event]) -> None:
        place: Any = moment(events, kind, step)
        for key in path[:-1]:
            place = place[key]
        assert place[path[-1]] != value, "the change must change something"
        place[path[-1]] = value

    return edit


def shape(step: int, name: str, value: list[int]) -> Callable[[list[Event]], None]:
    def edit(events: list[Event]) -> None:
        for event in events:
            if event["event"] == "model_shape" and (event["step"], event["name"]) == (step, name):
                event["shape"] = value

    return edit


@pytest.mark.parametrize(
    ("case", "name", "edit"),
    [
        ("lifecycle", "lifecycle", change("scheduled", 2, "phase", value="prefill")),
        ("lifecycle", "lifecycle", change("scheduled", 1, "batch", 1, "cached", value=32)),
        ("lifecycle", "lifecycle", change("after_postprocess", 1, "batch", 0, "total", value=64)),
        ("lifecycle", "lifecycle", change("after_postprocess", 2, "batch", 1, "cached", value=98)),
        ("lifecycle", "lifecycle", change("after_postprocess", 3, "batch", 0, "block_table", value=[1])),
        ("lifecycle", "lifecycle", change("after_postprocess", 3, "batch", 0, "cached", value=98)),
        ("lifecycle", "lifecycle", change("after_postprocess", 3, "free_blocks", value=1)),
        ("lifecycle", "lifecycle", change("after_postprocess", 2, "batch", 0, "status", value="RUNNING")),
        ("lifecycle", "lifecycle", change("after_postprocess", 3, "batch", 0, "outputs", value=2)),
        ("chunk", "chunk", change("after_postprocess", 1, "batch", 0, "accepted", value=5)),
        ("chunk", "chunk", change("after_postprocess", 1, "batch", 0, "total", value=701)),
        ("chunk", "chunk", change("gpu_inputs", 2, "cu_seqlens_k", value=[0, 188, 220])),
        ("chunk", "chunk", change("scheduled", 2, "batch", 1, "scheduled", value=16)),
        ("chunk", "runner", change("gpu_inputs", 2, "block_tables", value=None)),
        ("prefix", "prefix", change("scheduled", 4, "batch", 0, "cached", value=256)),
        ("prefix", "prefix", change("gpu_inputs", 4, "positions", value=list(range(108)))),
        ("prefix", "prefix", change("gpu_inputs", 4, "block_tables", value=None)),
        ("prefix", "prefix", change("scheduled", 4, "batch", 0, "block_table", value=[5, 6, 7])),
        ("prefix", "prefix", change("after_postprocess", 3, "batch", 0, "status", value="RUNNING")),
        ("lifecycle", "slots", change("gpu_inputs", 2, "slot_mapping", 1, value=0)),
        ("lifecycle", "slots", change("gpu_inputs", 1, "slot_mapping", 150, value=0)),
        ("lifecycle", "slots", change("scheduled", 3, "batch", 0, "block_table", value=[7])),
        ("lifecycle", "runner", change("gpu_inputs", 2, "context_lens", value=[64, 96])),
        ("lifecycle", "runner", change("gpu_inputs", 1, "cu_seqlens_q", value=[0, 96, 160])),
        ("lifecycle", "runner", change("gpu_inputs", 2, "positions", value=[65, 97])),
        ("lifecycle", "runner", change("gpu_inputs", 1, "block_tables", value=[[0], [1]])),
        ("prefix", "runner", change("gpu_inputs", 4, "cu_seqlens_k", value=[0, 108])),
        ("lifecycle", "shapes", shape(1, "qkv_proj", [160, 128])),
        ("lifecycle", "shapes", shape(2, "k", [2, 4, 64])),
        ("lifecycle", "shapes", shape(3, "logits", [2, 512])),
        ("chunk", "shapes", change("gpu_inputs", 2, "cu_seqlens_q", value=[0, 32, 220])),
    ],
)
def test_a_changed_value_is_caught(
    trace: Trace, tmp_path: Path, case: str, name: str, edit: Callable[[list[Event]], None]
) -> None:
    found = findings(edited(trace(case), edit), name, tmp_path)
    assert found.wrong, f"{name} did not notice"


def test_a_lost_shape_is_caught(trace: Trace, tmp_path: Path) -> None:
    events = [e for e in trace("lifecycle") if e.get("name") != "o_proj"]
    assert len(findings(events, "shapes", tmp_path).wrong) == 3


# ---- missing and broken ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "name", "kind"),
    [
        ("lifecycle", "lifecycle", "run"),
        ("lifecycle", "lifecycle", "end"),
        ("lifecycle", "lifecycle", "before_schedule"),
        ("lifecycle", "runner", "gpu_inputs"),
        ("chunk", "chunk", "after_postprocess"),
        ("prefix", "prefix", "prefix_second_request"),
        ("lifecycle", "shapes", "model_shape"),
    ],
)
def test_a_missing_event_names_itself_and_the_command(
    trace: Trace, tmp_path: Path, case: str, name: str, kind: str
) -> None:
    events = [event for event in trace(case) if event["event"] != kind]
    with pytest.raises(LabError) as seen:
        findings(events, name, tmp_path)
    assert kind in seen.value.message
    assert "03_trace_engine.py" in seen.value.message
    if kind == "model_shape":
        assert "--shapes" in seen.value.message


def test_a_missing_event_points_at_the_traceback(trace: Trace, tmp_path: Path) -> None:
    events: list[Any] = trace("lifecycle")[:3]
    log = write(tmp_path / "a.log", "engine=bundled", *events, "Traceback (most recent call last):", "RuntimeError: x")
    with pytest.raises(LabError, match=r"read the Traceback at line 5 of this raw log first") as seen:
        analyze.analyze_lifecycle(read_log(log))
    assert "never by hand" in seen.value.message


def test_a_missing_traceback_is_said_too(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="holds no Traceback either"):
        analyze.analyze_lifecycle(read_log(write(tmp_path / "a.log", "nothing here")))


def test_text_between_events_is_no_fault(trace: Trace, tmp_path: Path) -> None:
    mixed: list[Any] = ["engine=bundled  device=cpu", *trace("lifecycle"), "COLLECTED"]
    assert analyze.analyze_lifecycle(read_log(write(tmp_path / "a.log", *mixed))).wrong == []


@pytest.mark.parametrize("line", ['{"event":"run"', "{", '{"no_event": 1}', '{"event": 5}'])
def test_a_broken_line_names_its_number(trace: Trace, tmp_path: Path, line: str) -> None:
    events: list[Any] = trace("lifecycle")
    with pytest.raises(LabError, match="line 3"):
        read_log(write(tmp_path / "a.log", *events[:2], line, *events[2:]))


def test_a_file_that_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="cannot be read"):
        read_log(tmp_path / "none.log")
    (tmp_path / "b.log").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LabError, match="byte 0 is not UTF-8"):
        read_log(tmp_path / "b.log")


def test_a_trace_of_another_case_is_refused(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="is a trace of case chunk"):
        findings(trace("chunk"), "lifecycle", tmp_path)


# ---- tables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "rows"), [("lifecycle", 5), ("chunk", 5), ("prefix", 5)])
def test_table_explains_each_row(trace: Trace, tmp_path: Path, case: str, rows: int) -> None:
    table = findings(trace(case), case, tmp_path).table
    assert table is not None
    lines = [line.split("\t") for line in table.tsv().splitlines()]
    assert len(lines) == rows + 1
    assert {len(line) for line in lines} == {14}
    assert lines[0][-2:] == ["why_en", "why_zh"]
    assert all(line[-1] and line[-2] for line in lines)


def test_table_of_chunk_says_why(trace: Trace, tmp_path: Path) -> None:
    table = findings(trace("chunk"), "chunk", tmp_path).table
    assert table is not None
    first = table.tsv().splitlines()[1].split("\t")
    assert first[:9] == ["1", "prefill", "A", "700", "0", "512", "700", "512", "-"]
    assert "candidate discarded" in first[-2]
    assert "候选 token 丢弃" in first[-1]
