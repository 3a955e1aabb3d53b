"""`run.py report` and `run.py timeline`: from event logs to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from nanolab.errors import LabError
from nanolab.evidence import Recording, check_writable, write_atomic
from nanolab.report import build, compare, markdown, metrics, plots, records, timeline
from nanolab.report.build import Run, build_report, load_runs
from nanolab.report.metrics import Slo
from nanolab.serving.eventlog import read_log
from nanolab.verdicts import EvidenceType, Verdict

__all__ = ["split_inputs", "write_report", "write_timeline"]

STRENGTH = [
    EvidenceType.STATIC,
    EvidenceType.CPU_SIMULATION,
    EvidenceType.CPU_SCHEDULER,
    EvidenceType.CPU_ENGINE,
    EvidenceType.GPU,
]


def split_inputs(inputs: str) -> list[Path]:
    return [Path(part.strip()) for part in inputs.split(",") if part.strip()]


def write_report(inputs: Sequence[Path], out: Path, slo: Slo, echo: Any) -> None:
    """OUT.json (a result block), OUT.md and OUT-*.svg. REVIEW when an input is partial or its sender lagged."""
    if out.suffix != ".json":
        raise LabError(f"--out is {out.name}; it must end in .json (the Markdown and the plots take the same stem)")
    sources = [build, compare, markdown, metrics, plots, records]
    title = f"Load report: {', '.join(path.name for path in inputs)}"
    title_zh = f"负载报告：{'、'.join(path.name for path in inputs)}"
    with Recording(out.stem, title_en=title, title_zh=title_zh, out=out, sources=sources) as rec:
        runs = load_runs(inputs)
        report = build_report(runs, slo)
        stem = out.with_suffix("")
        drawn = plots.write_plots(runs, stem)
        write_atomic(out.with_suffix(".md"), markdown.render(title, report, drawn).encode())
        rec.engine, rec.model, rec.device = _engine(runs), _common(runs, "model"), _device(runs)
        rec.config = {"inputs": [run.name for run in runs], "plots": drawn}
        rec.result = report
        rec.volatile = [name for name in report if name != "formulas"]
        rec.notes = [f"{run.name}: {problem}" for run in runs for problem in run.problems]
        for run in runs:
            echo(f"{run.name}: {', '.join(run.marks) or 'measurement'}{'' if run.is_averaged else ', not averaged'}")
        for note in rec.notes:
            echo(f"note: {note}")
        echo(f"wrote {', '.join([out.name, out.with_suffix('.md').name, *drawn])}")
        verdict = Verdict.REVIEW if any(run.needs_review for run in runs) else Verdict.COLLECTED
        rec.finish(verdict, _weakest(runs))


def _weakest(runs: Sequence[Run]) -> EvidenceType:
    """A report claims no more than its weakest input; an endpoint that reveals nothing gives `static`."""
    kinds = [EvidenceType(run.header.evidence) if run.header.evidence else EvidenceType.STATIC for run in runs]
    return min(kinds, key=STRENGTH.index)


def _engine(runs: Sequence[Run]) -> dict[str, Any] | None:
    """The inputs' engine; where before and after differ, all of them."""
    engines = [run.header.engine for run in runs if run.header.engine is not None]
    different = [engine for index, engine in enumerate(engines) if engine not in engines[:index]]
    if len(different) > 1:
        return {"kind": "several", "engines": different}
    return different[0] if different else None


def _device(runs: Sequence[Run]) -> dict[str, Any] | None:
    """A report on GPU runs names the GPU, and as many of them as the widest of its runs had."""
    devices = [run.header.device for run in runs if run.header.device is not None]
    gpus = [device for device in devices if device["kind"] == "cuda"]
    return max(gpus, key=lambda device: int(device["count"])) if gpus else devices[0] if devices else None


def _common(runs: Sequence[Run], name: str) -> dict[str, Any] | None:
    """What all inputs say about their engine (model, device); None when they differ or do not say."""
    values = [getattr(run.header, name) for run in runs]
    return values[0] if all(value == values[0] for value in values) else None


def write_timeline(source: Path, out: Path, echo: Any) -> Verdict:
    """A Chrome/Perfetto trace of one log, checked before it is written."""
    target = check_writable(out)
    log = read_log(source)
    document = timeline.build_timeline(log)
    problems = timeline.check_timeline(document, log)
    write_atomic(target, msgspec.json.encode(document))
    spans = sum(event["ph"] == "X" for event in document["traceEvents"])
    echo(f"{len(document['traceEvents'])} trace events, {spans} spans -> {out}")
    for problem in [*log.problems, *problems]:
        echo(f"note: {problem}")
    if problems:
        return Verdict.FAIL
    return Verdict.REVIEW if log.is_partial else Verdict.PASS
