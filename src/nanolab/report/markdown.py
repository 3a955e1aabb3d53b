"""The report as Markdown: counts first, then latencies with their sample counts, mechanism evidence apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["render"]

LATENCIES = (
    ("queue_wait_ms", "queue wait"),
    ("ttft_ms", "TTFT"),
    ("ttft_from_planned_ms", "TTFT from planned"),
    ("itl_ms", "ITL"),
    ("chunk_gap_ms", "chunk gap"),
    ("tpot_ms", "TPOT"),
    ("e2e_ms", "E2E"),
    ("e2e_from_planned_ms", "E2E from planned"),
)


def render(title: str, report: dict[str, Any], plots: Sequence[str]) -> str:
    lines = [f"# {title}", ""]
    lines += _section("Measurements", report["measurements"], "Real engine, arrivals by time, no profiler.")
    lines += _comparison(report["comparison"])
    lines += _section(
        "Mechanism evidence",
        report["mechanism"],
        "Simulated, round-injected or profiled runs. They show what happens, never how fast it is.",
    )
    if report["pending"]:
        lines += ["## Pending", "", *(f"- {item}" for item in report["pending"]), ""]
    if plots:
        lines += ["## Plots", "", *(f"![{name}]({name})" for name in plots), ""]
    lines += ["## Formulas", "", *(f"- **{name}**: {text}" for name, text in report["formulas"].items()), ""]
    return "\n".join(lines)


def _section(title: str, runs: Sequence[dict[str, Any]], what: str) -> list[str]:
    lines = [f"## {title}", "", what, ""]
    if not runs:
        return [*lines, "None among the inputs.", ""]
    for run in runs:
        lines += _run(run)
    return lines


def _run(run: dict[str, Any]) -> list[str]:
    marks = "".join(f" `{mark}`" for mark in run["marks"])
    lines = [f"### {run['log']}{marks}", "", f"Evidence: {run['evidence'] or 'not revealed'}.", ""]
    if run["marks"]:
        lines += ["Its numbers are not measurements of this machine or of a model.", ""]
    lines += [f"- **not averaged, not compared: {problem}**" for problem in run["problems"]]
    config = ", ".join(f"{name}={_value(value)}" for name, value in run["config"].items() if value is not None)
    hidden = [name for name, value in run["config"].items() if value is None]
    lines.append(f"- configuration: {config}" + (f"; null: {', '.join(hidden)}" if hidden else ""))
    if run["warmup_excluded"]:
        lines.append(f"- warm-up, left out: {', '.join(run['warmup_excluded'])}")
    if run["lateness_ms"]:
        late = run["lateness_ms"]
        lines.append(
            f"- sender lateness (n={late['samples']}): p50 {_ms(late['p50_ms'])}, p99 {_ms(late['p99_ms'])}, "
            f"max {_ms(late['max_ms'])}"
        )
    if "rounds" in run:
        return [*lines, "", *_rounds(run["rounds"]), ""]
    lines += _throughput(run)
    for observer, classes in run["observers"].items():
        lines += ["", f"**Observer: {observer}**", "", *_counts(classes), "", *_latencies(classes)]
    return [*lines, ""]


def _throughput(run: dict[str, Any]) -> list[str]:
    found = run["throughput"]
    if not found or found["tokens_per_s"] is None:
        return ["- throughput: no request ended"]
    lines = [
        f"- throughput ({found['observer']}): {found['tokens_per_s']} tokens/s = {found['output_tokens']} tokens / "
        f"{found['window_s']} s, {found['requests_per_s']} requests/s"
    ]
    served = ", ".join(f"{worker} {count}" for worker, count in run["served_by"].items())
    return [*lines, f"- served by: {served}"] if served else lines


def _counts(classes: dict[str, Any]) -> list[str]:
    rows = ["| class | requests | ends | tokens of complete / other |", "| --- | ---: | --- | ---: |"]
    for name, metrics in classes.items():
        ends = ", ".join(f"{count} {reason}" for reason, count in metrics["ends"].items())
        slo = f"; SLO {metrics['slo_attainment']:.1%}" if "slo_attainment" in metrics else ""
        tokens = f"{metrics['output_tokens_complete']} / {metrics['output_tokens_other']}"
        rows.append(f"| {name} | {metrics['requests']} | {ends}{slo} | {tokens} |")
    return rows


def _latencies(classes: dict[str, Any]) -> list[str]:
    rows = _table_head("ms")
    for key, title in LATENCIES:
        for name, metrics in classes.items():
            found = metrics.get(key)
            if found is not None:
                rows.append(f"| {title} | {name} | " + " | ".join(_cells(found)) + " |")
    return rows


def _rounds(classes: dict[str, Any]) -> list[str]:
    rows = _table_head("rounds")
    for key, title in (("rounds_to_first_token", "to first token"), ("rounds_between_tokens", "between tokens")):
        for name, metrics in classes.items():
            rows.append(f"| {title} | {name} | " + " | ".join(_cells(metrics[key])) + " |")
    counts = "; ".join(f"{name}: {metrics['ends']}" for name, metrics in classes.items())
    return [*rows, "", f"Ends: {counts}"]


def _table_head(unit: str) -> list[str]:
    return [
        f"| {unit} | class | n | mean | p50 | p90 | p99 | max |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]


def _cells(summary: dict[str, Any]) -> list[str]:
    names = ("mean", "p50", "p90", "p99", "max")
    return [str(summary["n"]), *("–" if summary.get(name) is None else f"{summary[name]:.2f}" for name in names)]


def _comparison(comparison: dict[str, Any]) -> list[str]:
    if not comparison["repeats"]:
        return []
    lines = ["## Repeats", "", "Each run's own number; the spread is over runs.", ""]
    for label, found in comparison["repeats"].items():
        lines += [f"**{label}** ({found['runs']} runs)", ""]
        for name, values in found.items():
            if name != "runs":
                each = ", ".join("–" if value is None else f"{value:g}" for value in values["each"])
                middle = f"; median {values['p50']:g}" if values["n"] else ""
                lines.append(f"- {name}: {each}{middle}")
        lines.append("")
    for pair in comparison["pairs"]:
        lines += [f"## Paired: {pair['before']} → {pair['after']}", ""]
        if not pair["paired"]:
            lines += [f"Not paired: {pair['why']}.", ""]
            continue
        lines.append(
            f"{pair['run_pairs']} run pairs, {pair['unpaired_runs']} runs without a partner, "
            f"{pair['requests_without_pair']} requests without a complete partner. Differences are after - before."
        )
        lines += ["", "| ms | n | median | mean | lower after |", "| --- | ---: | ---: | ---: | ---: |"]
        for name, values in pair.items():
            if isinstance(values, dict) and values["n"]:
                lower = f"{values['share_lower_after']:.0%}"
                lines.append(f"| {name} | {values['n']} | {values['p50']:+.2f} | {values['mean']:+.2f} | {lower} |")
        lines.append("")
    return lines


def _ms(value: float | None) -> str:
    return "not given under 100 samples" if value is None else f"{value:.2f} ms"


def _value(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)
