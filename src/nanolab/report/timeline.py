"""A log as a Chrome/Perfetto trace: engine steps, counters, one lane a request, one lane a request at the client.

`check_timeline` holds the rules that make such a file trustworthy: spans of a lane nest, every request has exactly
one terminal instant, and the sums (tokens, steps, scheduled positions) equal those of the log.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from nanolab.report.records import RequestRecord, build_records, steps_of
from nanolab.serving.eventlog import Log
from nanolab.serving.events import Step

__all__ = ["build_timeline", "check_timeline"]

ENGINE, REQUESTS, CLIENT = 1, 2, 3  # process ids in the viewer


def build_timeline(log: Log) -> dict[str, Any]:
    """Chrome's JSON object format; times in microseconds after the log's first event."""
    start = min((event.t_ns for event in log.events), default=0)
    start = min([start, *(step.started_ns for step in steps_of(log))])
    events: list[dict[str, Any]] = []
    for pid, name in ((ENGINE, "engine"), (REQUESTS, "requests (engine)"), (CLIENT, "requests (client)")):
        events.append(_named("process_name", name, pid))
    events.append(_named("thread_name", "steps", ENGINE, 1))
    for step in steps_of(log):
        events += _step(step, start)
    for observer, pid in (("engine", REQUESTS), ("client", CLIENT)):
        for lane, record in enumerate(build_records(log).get(observer, []), start=1):
            events.append(_named("thread_name", record.request_id, pid, lane))
            events += _request(record, pid, lane, start)
    header = log.header
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "run_id": header.run_id,
            "clock": header.clock,
            "evidence": header.evidence,
            "simulated": header.simulated,
            "round_injected": header.round_injected,
            "profile": header.profile,
            "partial": log.problems,
        },
        "traceEvents": events,
    }


def _named(kind: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _step(step: Step, start: int) -> list[dict[str, Any]]:
    scheduled = sum(row[3] for row in step.batch)
    span = {
        "ph": "X",
        "name": step.phase,
        "cat": "step",
        "pid": ENGINE,
        "tid": 1,
        "ts": (step.started_ns - start) / 1e3,
        "dur": (step.t_ns - step.started_ns) / 1e3,
        "args": {
            "step": step.step,
            "round": step.round,
            "scheduled": scheduled,
            "batch": [f"{name} {total}/{cached}/{count}" for name, total, cached, count, _ in step.batch],
        },
    }
    at = (step.t_ns - start) / 1e3
    counters = {"requests": {"running": step.running, "waiting": step.waiting}, "KV blocks": {"free": step.free_blocks}}
    return [span, *({"ph": "C", "name": n, "pid": ENGINE, "tid": 0, "ts": at, "args": a} for n, a in counters.items())]


def _request(record: RequestRecord, pid: int, lane: int, start: int) -> list[dict[str, Any]]:
    """An outer span for the request, phases inside it, an instant for each arrival and one for the end."""
    end = record.ended_ns if record.ended_ns is not None else record.last_ns or record.started_ns
    phases: list[tuple[str, int, int]] = []
    first = record.first_ns if record.first_ns is not None else end
    if record.admitted_ns is not None:
        phases += [("queued", record.started_ns, record.admitted_ns), ("prefill", record.admitted_ns, first)]
    else:
        phases.append(("waiting", record.started_ns, first))
    if record.first_ns is not None:
        phases.append(("decode", first, end))
    base = {"pid": pid, "tid": lane}
    spans = [
        {"ph": "X", "name": name, "cat": "request", **base}
        | {"ts": (begin - start) / 1e3, "dur": (finish - begin) / 1e3, "args": {}}
        for name, begin, finish in [(record.request_id, record.started_ns, end), *phases]
    ]
    arrivals = [
        {"ph": "i", "s": "t", "name": "token" if pid == REQUESTS else "chunk", "cat": "arrival", **base}
        | {"ts": (time - start) / 1e3, "args": {"tokens": tokens}}
        for time, tokens in record.arrivals
    ]
    if record.ended_ns is None:
        return spans + arrivals
    terminal = {"ph": "i", "s": "t", "name": record.reason, "cat": "terminal", **base, "ts": (end - start) / 1e3}
    return [*spans, *arrivals, terminal | {"args": {"output_tokens": record.output_tokens}}]


def check_timeline(document: dict[str, Any], log: Log) -> list[str]:
    """What is wrong with a timeline of `log`; empty when nothing is."""
    events = document["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    problems = [f"{span['name']}: negative duration" for span in spans if span["dur"] < 0]
    lanes: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for span in spans:
        lanes.setdefault((span["pid"], span["tid"]), []).append(span)
    for lane in lanes.values():
        problems += _check_nesting(lane)
    problems += _check_terminals(events, log)
    return problems + _check_sums(events, log)


def _check_nesting(lane: list[dict[str, Any]]) -> list[str]:
    """Two spans of one lane are apart, or one lies inside the other."""
    problems: list[str] = []
    stack: list[float] = []
    for span in sorted(lane, key=lambda span: (span["ts"], -span["dur"])):
        begin, end = span["ts"], span["ts"] + span["dur"]
        while stack and stack[-1] <= begin + 1e-6:
            stack.pop()
        if stack and end > stack[-1] + 1e-3:  # a nanosecond, lost in microseconds
            problems.append(f"{span['name']} at {begin:.3f} us does not nest")
        stack.append(end)
    return problems


def _check_terminals(events: list[dict[str, Any]], log: Log) -> list[str]:
    counted = Counter((e["pid"], e["tid"]) for e in events if e.get("cat") == "terminal")
    problems = []
    for observer, pid in (("engine", REQUESTS), ("client", CLIENT)):
        for lane, record in enumerate(build_records(log).get(observer, []), start=1):
            wanted = 0 if record.ended_ns is None else 1
            if counted[(pid, lane)] != wanted:
                problems.append(f"{record.request_id} ({observer}) has {counted[(pid, lane)]} terminal instants")
            if wanted == 0 and not log.is_partial:
                problems.append(f"{record.request_id} ({observer}) has no end although the log is complete")
    return problems


def _check_sums(events: list[dict[str, Any]], log: Log) -> list[str]:
    records, steps = build_records(log), steps_of(log)
    shown = {
        "steps": sum(e.get("cat") == "step" for e in events),
        "scheduled positions": sum(e["args"]["scheduled"] for e in events if e.get("cat") == "step"),
        "engine tokens": sum(e.get("cat") == "arrival" and e["pid"] == REQUESTS for e in events),
        "client chunks": sum(e.get("cat") == "arrival" and e["pid"] == CLIENT for e in events),
    }
    logged = {
        "steps": len(steps),
        "scheduled positions": sum(row[3] for step in steps for row in step.batch),
        "engine tokens": sum(len(record.arrivals) for record in records.get("engine", [])),
        "client chunks": sum(len(record.arrivals) for record in records.get("client", [])),
    }
    return [f"{name}: {shown[name]} shown, {logged[name]} in the log" for name in shown if shown[name] != logged[name]]
