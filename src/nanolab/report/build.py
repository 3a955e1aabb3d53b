"""The report: measurements, mechanism evidence and comparisons, from any number of event logs.

A log is a measurement when it has a real engine, arrivals by time and no profiler; everything else is mechanism
evidence and listed apart. A measurement is averaged and compared only when its log is complete and its sender kept
up; one that is not stays in the report, marked, with its counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanolab.errors import LabError
from nanolab.load.sender import Lateness, lateness_of
from nanolab.report.compare import compare_groups, group_runs
from nanolab.report.metrics import FORMULAS, Slo, metrics_of, round_metrics_of, throughput_of
from nanolab.report.records import RequestRecord, build_records, warmup_ids
from nanolab.serving.eventlog import Log, read_log
from nanolab.serving.events import RunHeader, Sent, Step

__all__ = ["Run", "build_report", "load_runs"]

CLASSES = ("short", "long")


@dataclass
class Run:
    """One log with its records, and what it may be used for."""

    name: str
    sha256: str
    log: Log
    records: dict[str, list[RequestRecord]]
    lateness: Lateness | None

    @property
    def header(self) -> RunHeader:
        return self.log.header

    @property
    def marks(self) -> list[str]:
        """Why this is mechanism evidence; empty for a measurement."""
        header = self.header
        marks = {"simulated": header.simulated, "round": header.round_injected, "profile": header.profile}
        return [name for name, is_set in marks.items() if is_set]

    @property
    def problems(self) -> list[str]:
        """Why a measurement is not averaged; empty when it is."""
        found = [f"partial: {problem}" for problem in self.log.problems]
        limit = self.header.lateness_limit_ms
        if self.lateness is not None and not self.lateness.is_within(limit):
            found.append(f"invalid: the sender lagged more than {limit:g} ms")
        return found

    @property
    def needs_review(self) -> bool:
        """Partial, or a measurement that is none because its sender lagged."""
        return self.log.is_partial or bool(self.problems and not self.marks)

    @property
    def is_averaged(self) -> bool:
        return not self.marks and not self.problems

    @property
    def observer(self) -> str | None:
        """The one observer of this run's throughput: the client where there is one."""
        return "client" if "client" in self.records else next(iter(self.records), None)

    @property
    def steps(self) -> list[Step]:
        return [event for event in self.log.events if isinstance(event, Step)]


def load_runs(paths: Sequence[Path]) -> list[Run]:
    if not paths:
        raise LabError("--inputs is empty; give one or more event logs, separated by commas")
    runs: list[Run] = []
    for path in paths:
        log = read_log(path)
        warmup = warmup_ids(log)
        sent = [event for event in log.events if isinstance(event, Sent) and event.request_id not in warmup]
        sha = hashlib.sha256(path.read_bytes()).hexdigest()
        if any(run.sha256 == sha for run in runs):
            raise LabError(f"{path} is given twice, or is a copy of another input; a run counts once")
        records = build_records(log)
        lateness = None if log.header.round_injected else lateness_of(sent)
        runs.append(Run(path.name, sha, log, records, lateness))
    return runs


def build_report(runs: Sequence[Run], slo: Slo) -> dict[str, Any]:
    measurements = [run for run in runs if not run.marks]
    mechanism = [run for run in runs if run.marks]
    groups = group_runs([run for run in measurements if run.is_averaged])
    return {
        "formulas": FORMULAS,
        "slo": {name: value for name, value in asdict(slo).items() if value is not None},
        "measurements": [describe_run(run, slo) for run in measurements],
        "mechanism": [describe_run(run, slo) for run in mechanism],
        "groups": {label: [run.name for run in members] for label, members in groups.items()},
        "comparison": compare_groups(groups),
        "pending": _pending(runs),
    }


def describe_run(run: Run, slo: Slo) -> dict[str, Any]:
    header = run.header
    described: dict[str, Any] = {
        "log": run.name,
        "log_sha256": run.sha256,
        "run_id": header.run_id,
        "evidence": header.evidence,
        "marks": run.marks,
        "problems": run.problems,
        "averaged": run.is_averaged,
        "trace_sha256": header.trace_sha256,
        "config": header.config,
        "warmup_excluded": sorted(warmup_ids(run.log)),
        "lateness_ms": None if run.lateness is None else {k: _rounded(v) for k, v in asdict(run.lateness).items()},
    }
    if header.round_injected:
        described["rounds"] = _by_class(run.records.get("engine", []), round_metrics_of)
        return described
    described["throughput"] = None
    if run.observer is not None:
        described["throughput"] = {"observer": run.observer, **throughput_of(run.records[run.observer])}
        described["served_by"] = _served_by(run.records[run.observer])
    described["observers"] = {
        observer: _by_class(records, lambda found: metrics_of(found, slo)) for observer, records in run.records.items()
    }
    return described


def _by_class(records: list[RequestRecord], describe: Any) -> dict[str, Any]:
    """All requests together, then short and long apart where the trace says which is which."""
    result = {"all": describe(records)}
    for name in CLASSES:
        if found := [record for record in records if record.request_class == name]:
            result[name] = describe(found)
    return result


def _served_by(records: Sequence[RequestRecord]) -> dict[str, int]:
    """Requests each worker (client: endpoint) answered; every one that should have served must be here."""
    served: dict[str, int] = {}
    for record in records:
        for worker in record.workers:
            served[worker] = served.get(worker, 0) + 1
    return dict(sorted(served.items()))


def _pending(runs: Sequence[Run]) -> list[str]:
    """What this report cannot say, by evidence type, so that it is not read as more than it is."""
    kinds = {run.header.evidence for run in runs if not run.marks}
    missing = []
    if "gpu" not in kinds:
        missing.append("gpu: no log of a run on a GPU is among the inputs; no GPU latency or throughput is stated")
    if None in kinds:
        missing.append("a remote endpoint did not reveal what it ran on; its numbers carry no evidence type")
    return missing


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
