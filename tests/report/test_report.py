"""Reports: what is a measurement, what is not averaged, what is compared with what, and the files that come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nanolab import evidence
from nanolab.errors import LabError
from nanolab.report.build import build_report, load_runs
from nanolab.report.metrics import Slo
from nanolab.report.program import write_report, write_timeline
from nanolab.report.timeline import build_timeline, check_timeline
from nanolab.serving.eventlog import read_log
from nanolab.serving.events import Event, Reason
from nanolab.verdicts import Verdict

from .helpers import client_life, engine_life, step, write


def some_events(delay: float = 0.0) -> list[Event]:
    events: list[Event] = []
    for index in range(4):
        kind = "long" if index == 3 else "short"
        start, first = index * 40.0, index * 40.0 + 20 + delay
        tokens = [first, first + 10, first + 20 + delay]
        events += engine_life(f"r{index}", start, start + 2, tokens, request_class=kind)
        events += client_life(f"r{index}", start, start, [(at + 1, 1) for at in tokens], request_class=kind)
        events.append(step(first, 5, [(f"r{index}", 4, 0, 4)], "prefill"))
        events += [step(at, 5, [(f"r{index}", 5, 4, 1)]) for at in tokens[1:]]
    return events


def report(*paths: Path) -> dict[str, Any]:
    return build_report(load_runs(paths), Slo())


def quiet(text: str) -> None:
    pass


@pytest.mark.parametrize(
    ("marks", "kind"),
    [
        ({}, "measurements"),
        ({"simulated": True}, "mechanism"),
        ({"round_injected": True}, "mechanism"),
        ({"profile": True}, "mechanism"),
    ],
)
def test_simulated_round_and_profiled_logs_are_listed_apart(marks: dict[str, bool], kind: str, tmp_path: Path) -> None:
    made = report(write(tmp_path / "log.jsonl", some_events(), **marks))
    assert [run["log"] for run in made[kind]] == ["log.jsonl"]
    assert made["mechanism" if kind == "measurements" else "measurements"] == []
    assert made["groups"] == ({"all runs": ["log.jsonl"]} if kind == "measurements" else {})


def test_a_round_log_has_rounds_and_no_milliseconds(tmp_path: Path) -> None:
    (run,) = report(write(tmp_path / "log.jsonl", some_events(), round_injected=True))["mechanism"]
    assert "observers" not in run
    assert "throughput" not in run
    assert run["rounds"]["all"]["rounds_between_tokens"]["mean"] == 1
    assert run["lateness_ms"] is None


def test_observers_and_classes_are_kept_apart(tmp_path: Path) -> None:
    (run,) = report(write(tmp_path / "log.jsonl", some_events()))["measurements"]
    assert set(run["observers"]) == {"engine", "client"}
    for observer, ttft in (("engine", 20), ("client", 21)):
        classes = run["observers"][observer]
        assert {name: found["requests"] for name, found in classes.items()} == {"all": 4, "short": 3, "long": 1}
        assert classes["all"]["ttft_ms"]["p50"] == ttft
    assert run["throughput"]["observer"] == "client"
    assert run["throughput"]["output_tokens"] == 12  # one observer, not the sum of both


def test_a_run_whose_sender_lagged_is_invalid_and_not_averaged(tmp_path: Path) -> None:
    late = [*some_events(), *client_life("late", 10, 900, [(950, 1)])]
    good = write(tmp_path / "good.jsonl", some_events())
    made = report(good, write(tmp_path / "late.jsonl", late))
    states = {run["log"]: (run["averaged"], run["problems"]) for run in made["measurements"]}
    assert states["good.jsonl"] == (True, [])
    assert states["late.jsonl"] == (False, ["invalid: the sender lagged more than 20 ms"])
    assert made["groups"] == {"all runs": ["good.jsonl"]}


def test_a_log_cut_in_half_is_partial_and_nothing_is_dropped(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.jsonl", some_events())
    data = whole.read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(data[: len(data) // 2])
    (run,) = report(cut)["measurements"]
    assert run["averaged"] is False
    assert any("cut off" in problem for problem in run["problems"])
    assert any("no `end` line" in problem for problem in run["problems"])
    ends = run["observers"]["engine"]["all"]["ends"]
    assert sum(ends.values()) == run["observers"]["engine"]["all"]["requests"]
    assert ends["unfinished"] >= 1


def test_a_run_that_ended_early_says_why(tmp_path: Path) -> None:
    (run,) = report(write(tmp_path / "log.jsonl", some_events(), complete=False))["measurements"]
    assert run["problems"] == ["partial: the run ended early: stopped"]


def test_a_log_that_lost_a_line_is_partial(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", some_events())
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5] + lines[6:]))
    (run,) = report(path)["measurements"]
    assert any("`end` line counts" in problem for problem in run["problems"])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda lines: [*lines[:3], b"{broken", *lines[3:]], "line 4 is not an event"),
        (lambda lines: [*lines[:3], b"\xff\xfe", *lines[3:]], "line 4 is not an event"),
        (lambda lines: lines[1:], "does not start with a nanolab.events/1 run header"),
        (lambda lines: [], "line 1 is not an event"),
        (lambda lines: [b'{"event":"run","run_id":"x","started_at":"now","schema":"other/9"}'], "does not start with"),
    ],
)
def test_a_damaged_log_is_a_clear_error(damage: Any, says: str, tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", some_events())
    path.write_bytes(b"\n".join(damage(path.read_bytes().splitlines())) + b"\n")
    with pytest.raises(LabError, match=says):
        read_log(path)


def test_an_empty_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").touch()
    with pytest.raises(LabError, match="does not start with"):
        read_log(tmp_path / "log.jsonl")
    with pytest.raises(LabError, match="cannot read the event log"):
        read_log(tmp_path / "none.jsonl")


def test_the_same_log_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", some_events())
    with pytest.raises(LabError, match="a run counts once"):
        load_runs([path, path])


def test_warmup_is_left_out_and_listed(tmp_path: Path) -> None:
    events = [*some_events(), *engine_life("warmup-0", 0, 1, [500, 900]), *client_life("warmup-0", 0, 0, [(901, 1)])]
    (run,) = report(write(tmp_path / "log.jsonl", events, warmup=["warmup-0"]))["measurements"]
    assert run["warmup_excluded"] == ["warmup-0"]
    assert run["observers"]["client"]["all"]["requests"] == 4
    assert run["throughput"]["window_s"] < 0.5


def test_a_servers_log_knows_warmup_by_its_class(tmp_path: Path) -> None:
    events = [*some_events(), *engine_life("warmup-0-0", 0, 1, [500, 900], request_class="warmup")]
    (run,) = report(write(tmp_path / "log.jsonl", events))["measurements"]
    assert run["warmup_excluded"] == ["warmup-0-0"]
    assert run["observers"]["engine"]["all"]["requests"] == 4


def test_repeats_keep_each_run_and_pairs_compare_a_request_with_itself(tmp_path: Path) -> None:
    paths = []
    for policy, delay in (("prefill_first", 0.0), ("balanced", 5.0)):
        for repeat in range(3):
            path = tmp_path / f"{policy}-{repeat}.jsonl"
            config = {"policy": policy, "repeat": repeat}
            paths.append(
                write(path, some_events(delay + repeat / 8), trace_sha256="a" * 64, config=config, run_id=str(repeat))
            )
    made = report(*paths)
    assert {label: len(logs) for label, logs in made["groups"].items()} == {
        "policy=prefill_first": 3,
        "policy=balanced": 3,
    }
    repeats = made["comparison"]["repeats"]["policy=prefill_first"]
    assert repeats["short_ttft_ms_p50"]["each"] == [21, 21.125, 21.25]
    (pair,) = made["comparison"]["pairs"]
    assert (pair["before"], pair["after"], pair["run_pairs"]) == ("policy=prefill_first", "policy=balanced", 3)
    assert (pair["short_ttft_ms"]["n"], pair["short_ttft_ms"]["p50"]) == (9, 5)
    assert (pair["long_ttft_ms"]["n"], pair["long_tpot_ms"]["p50"]) == (3, 2.5)
    assert pair["short_ttft_ms"]["share_lower_after"] == 0


def test_different_traces_are_never_paired(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", some_events(), trace_sha256="a" * 64)
    two = write(tmp_path / "two.jsonl", some_events(1), trace_sha256="b" * 64)
    (pair,) = report(one, two)["comparison"]["pairs"]
    assert pair["paired"] is False


def test_a_request_without_a_complete_partner_is_counted(tmp_path: Path) -> None:
    extra = client_life("only-before", 200, 200, [(210, 1), (220, 1)])
    failed = client_life("only-before", 200, 200, [], Reason.ERROR)
    one = write(tmp_path / "one.jsonl", [*some_events(), *extra], trace_sha256="a" * 64)
    config = {"policy": "balanced"}
    two = write(tmp_path / "two.jsonl", [*some_events(1), *failed], trace_sha256="a" * 64, config=config)
    (pair,) = report(one, two)["comparison"]["pairs"]
    assert pair["requests_without_pair"] == 1
    assert pair["short_ttft_ms"]["n"] == 3


def test_missing_gpu_results_stay_pending(tmp_path: Path) -> None:
    made = report(write(tmp_path / "log.jsonl", some_events()))
    assert any(item.startswith("gpu:") for item in made["pending"])
    unknown = report(write(tmp_path / "remote.jsonl", some_events(), evidence=None))
    assert any("did not reveal" in item for item in unknown["pending"])


# ---- files -----------------------------------------------------------------------------------------------


def test_json_markdown_and_svg_come_out_and_are_deterministic(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", some_events(), simulated=True, evidence="cpu-simulation")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_report([log], tmp_path / name / "report.json", Slo(), quiet)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [
        "report-ecdf.svg",
        "report-queues.svg",
        "report-timeline.svg",
        "report-ttft.svg",
        "report.json",
        "report.md",
    ]
    for name in names:
        one, two = ((tmp_path / side / name).read_bytes() for side in ("one", "two"))
        if name != "report.json":
            assert one == two, f"{name} differs between two runs"
    block = evidence.load(tmp_path / "one" / "report.json")
    assert (block["check"], block["evidence"]) == ("COLLECTED", "cpu-simulation")
    markdown = (tmp_path / "one" / "report.md").read_text()
    assert (
        markdown.index("## Measurements") < markdown.index("## Mechanism evidence") < markdown.index("log.jsonl `sim")
    )
    for formula in ("(last - first) / (n - 1)", "common window"):
        assert formula in markdown
    timeline = (tmp_path / "one" / "report-timeline.svg").read_text()
    assert "simulated" in timeline
    assert ">r3<" in timeline


def test_a_report_claims_no_more_than_its_weakest_input(tmp_path: Path) -> None:
    real = write(tmp_path / "real.jsonl", some_events())
    simulated = write(tmp_path / "sim.jsonl", some_events(1), simulated=True, evidence="cpu-simulation")
    write_report([real, simulated], tmp_path / "report.json", Slo(), quiet)
    assert evidence.load(tmp_path / "report.json")["evidence"] == "cpu-simulation"


def test_a_report_names_as_many_gpus_as_its_widest_run_had(tmp_path: Path) -> None:
    logs = []
    for count in (1, 2):
        device = {"kind": "cuda", "name": "Chip", "count": count, "driver": "1", "cuda": "1"}
        logs.append(write(tmp_path / f"{count}.jsonl", some_events(count), evidence="gpu", device=device))
    write_report(logs, tmp_path / "report.json", Slo(), quiet)
    assert evidence.load(tmp_path / "report.json")["device"]["count"] == 2


def test_an_invalid_input_makes_the_report_a_review(tmp_path: Path) -> None:
    late = write(tmp_path / "late.jsonl", client_life("r", 0, 900, [(950, 1)]), evidence=None)
    with pytest.raises(SystemExit) as left:
        write_report([late], tmp_path / "report.json", Slo(), quiet)
    assert left.value.code == Verdict.REVIEW.exit_code
    block = evidence.load(tmp_path / "report.json")
    assert block["check"] == "REVIEW"
    assert "sender lagged" in block["notes"][0]


def test_out_must_be_json(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"must end in \.json"):
        write_report([], tmp_path / "report.md", Slo(), quiet)


# ---- timeline --------------------------------------------------------------------------------------------


def test_the_timeline_agrees_with_its_log(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", some_events())
    assert write_timeline(path, tmp_path / "trace.json", quiet) is Verdict.PASS
    document = json.loads((tmp_path / "trace.json").read_text())
    kinds = {event["ph"] for event in document["traceEvents"]}
    assert kinds == {"M", "X", "C", "i"}
    assert all("ts" in event and "pid" in event for event in document["traceEvents"] if event["ph"] != "M")
    lanes = {event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"}
    assert lanes == {"engine", "requests (engine)", "requests (client)"}


def damaged(tmp_path: Path, damage: Any) -> list[str]:
    log = read_log(write(tmp_path / "log.jsonl", some_events()))
    document = build_timeline(log)
    assert check_timeline(document, log) == []
    damage(document["traceEvents"])
    return check_timeline(document, log)


def drop(events: list[dict[str, Any]], **wanted: Any) -> None:
    index = next(i for i, event in enumerate(events) if all(event.get(k) == v for k, v in wanted.items()))
    del events[index]


def double(events: list[dict[str, Any]], **wanted: Any) -> None:
    events.append(next(event for event in events if all(event.get(k) == v for k, v in wanted.items())))


def overlap(events: list[dict[str, Any]]) -> None:
    steps = [event for event in events if event.get("cat") == "step"]
    steps[0]["dur"] = steps[1]["ts"] + steps[1]["dur"] / 2 - steps[0]["ts"]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda events: drop(events, cat="terminal"), "has 0 terminal instants"),
        (lambda events: double(events, cat="terminal"), "has 2 terminal instants"),
        (lambda events: drop(events, cat="arrival", name="token"), "engine tokens: 11 shown, 12 in the log"),
        (lambda events: drop(events, cat="step"), "steps: 11 shown, 12 in the log"),
        (overlap, "does not nest"),
    ],
)
def test_the_timelines_rules_catch_damage(damage: Any, says: str, tmp_path: Path) -> None:
    assert any(says in problem for problem in damaged(tmp_path, damage))


def test_a_partial_log_gives_a_timeline_marked_partial(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", some_events())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert write_timeline(path, tmp_path / "trace.json", quiet) is Verdict.REVIEW
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["partial"]
