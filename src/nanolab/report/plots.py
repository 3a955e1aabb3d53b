"""Plots of a report as SVG, the same bytes for the same logs: no date, fixed ids, text kept as text.

Each plot says in its title what kind of run it shows; a simulated or profiled one says so in the figure itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nanolab.report.build import Run
from nanolab.report.metrics import itl_ms, ttft_ms
from nanolab.report.records import RequestRecord

__all__ = ["write_plots"]

SHORT, LONG, OTHER = "#3b6fb6", "#c4622d", "#6b6b6b"
WAIT, PREFILL = "#d5d5d5", "#f0c27a"
STYLE: Any = {
    "svg.hashsalt": "nanolab",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.dpi": 100,
}


def write_plots(runs: Sequence[Run], stem: Path) -> list[str]:
    """Write STEM-timeline, -ttft, -ecdf and -queues.svg, those for which there are data; returns their names."""
    import matplotlib

    matplotlib.use("Agg")
    timed = [run for run in runs if not run.header.round_injected and run.observer is not None]
    measured = [run for run in timed if run.is_averaged] or timed
    if not measured:
        return []
    written: list[str] = []
    with matplotlib.rc_context(STYLE):
        written += _save(stem, "timeline", _timeline(measured[0]))
        written += _save(stem, "ttft", _ttft(measured))
        written += _save(stem, "ecdf", _ecdf(measured))
        with_steps = next((run for run in measured if run.steps), None)
        if with_steps is not None:
            written += _save(stem, "queues", _queues(with_steps))
    return written


def _save(stem: Path, name: str, figure: Any) -> list[str]:
    import matplotlib.pyplot as plt

    path = stem.with_name(f"{stem.name}-{name}.svg")
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    plt.close(figure)
    return [path.name]


def _title(run: Run, what: str) -> str:
    kind = ", ".join(run.marks) or run.header.evidence or "evidence not revealed"
    return f"{what} — {run.name} ({kind})"


def _color(record: RequestRecord) -> str:
    return {"short": SHORT, "long": LONG}.get(record.request_class or "", OTHER)


def _subplots(height: float, rows: int = 1, columns: int = 1, **options: Any) -> Any:
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=(8, height), layout="constrained", **options)


def _timeline(run: Run) -> Any:
    """A lane per request: waiting, prefill until the first token, then its tokens as ticks, and how it ended."""
    records = run.records.get("engine") or run.records["client"]
    start = min(record.started_ns for record in records)
    figure, axes = _subplots(max(2.5, 0.22 * len(records) + 1.2))
    for lane, record in enumerate(records):
        end = record.ended_ns or record.last_ns or record.started_ns
        first = record.first_ns or end
        admitted = record.admitted_ns or record.started_ns
        _bar(axes, lane, record.started_ns - start, admitted - start, WAIT)
        _bar(axes, lane, admitted - start, first - start, PREFILL)
        _bar(axes, lane, first - start, end - start, _color(record), alpha=0.35)
        times = [(time - start) / 1e6 for time, _ in record.arrivals]
        axes.vlines(times, lane - 0.3, lane + 0.3, color=_color(record), linewidth=0.7)
        if not record.is_complete:
            axes.text((end - start) / 1e6, lane, f" {record.reason}", fontsize=7, va="center")
    axes.set_yticks(range(len(records)), [record.request_id for record in records], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("ms after the first request; grey waits, amber prefill, ticks are tokens")
    axes.set_title(_title(run, f"Request timeline, observer {records[0].observer}"), fontsize=9)
    return figure


def _bar(axes: Any, lane: int, begin_ns: int, end_ns: int, color: str, alpha: float = 1.0) -> None:
    axes.barh(lane, (end_ns - begin_ns) / 1e6, left=begin_ns / 1e6, height=0.6, color=color, alpha=alpha, linewidth=0)


def _ttft(runs: Sequence[Run]) -> Any:
    """TTFT over arrival: where in the run it was slow, not only how often."""
    figure, axes = _subplots(3.2)
    for index, run in enumerate(runs):
        records = run.records[run.observer or ""]
        start = min(record.started_ns for record in records)
        for name, color in (("short", SHORT), ("long", LONG), (None, OTHER)):
            points = [
                ((record.started_ns - start) / 1e6, ttft_ms(record))
                for record in records
                if record.request_class == name and record.first_ns is not None
            ]
            if points:
                x, y = zip(*points, strict=True)
                label = f"{run.name} {name or ''}".strip()
                axes.scatter(x, y, s=16, color=color, marker="osD^v"[index % 5], label=label, alpha=0.8)
    axes.set_xlabel("arrival, ms after the first")
    axes.set_ylabel("TTFT, ms")
    axes.set_ylim(bottom=0)
    axes.set_title("TTFT over arrival", fontsize=9)
    if axes.has_data():
        axes.legend(fontsize=7)
    return figure


def _ecdf(runs: Sequence[Run]) -> Any:
    """The whole distribution of TTFT and ITL, one line a run."""
    figure, (left, right) = _subplots(3.0, columns=2, sharey=True)
    for index, run in enumerate(runs):
        complete = [record for record in run.records[run.observer or ""] if record.is_complete]
        gaps = [gap for record in complete for gap in itl_ms(record) or ()]
        first = [value for record in complete if (value := ttft_ms(record)) is not None]
        for axes, values in ((left, first), (right, gaps)):
            if values:
                ordered = np.sort(values)
                share = np.arange(1, len(ordered) + 1) / len(ordered)
                style = ("-", "--", ":", "-.")[index % 4]
                axes.step(ordered, share, where="post", linestyle=style, label=f"{run.name} (n={len(ordered)})")
    for axes, name in ((left, "TTFT"), (right, "ITL")):
        axes.set_xlabel(f"{name}, ms")
        axes.set_title(f"ECDF of {name}", fontsize=9)
        if axes.has_data():
            axes.legend(fontsize=7)
    left.set_ylabel("share of samples")
    return figure


def _queues(run: Run) -> Any:
    """Running, waiting and free KV blocks after each engine step."""
    steps = run.steps
    start = steps[0].started_ns
    times = [(step.t_ns - start) / 1e6 for step in steps]
    figure, (top, bottom) = _subplots(4.0, rows=2, sharex=True)
    top.step(times, [step.running for step in steps], where="post", color=SHORT, label="running")
    top.step(times, [step.waiting for step in steps], where="post", color=LONG, label="waiting in the engine")
    top.legend(fontsize=7)
    top.set_ylabel("requests")
    top.set_title(_title(run, "Queues and KV blocks after each step"), fontsize=9)
    bottom.step(times, [step.free_blocks for step in steps], where="post", color=OTHER)
    bottom.set_ylabel("free KV blocks")
    bottom.set_xlabel("ms after the first step")
    return figure
