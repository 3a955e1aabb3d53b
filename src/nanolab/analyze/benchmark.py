"""Two logs of lab 04 that may differ in one setting only, and the ratio of their throughputs."""

from __future__ import annotations

from typing import Any

from nanolab.errors import LabError, MissingPrerequisite

from .findings import Findings
from .log import Event, EventLog

MAKE = "python scripts/labs/04_benchmark_engine.py"
IDENTITY = (("engine", "tree_sha256"), ("model", "config_sha256"), ("model", "weights_sha256"), ("device", "name"))


def compare_benchmarks(log: EventLog, other: EventLog, variable: str) -> Findings:
    """PASS: same engine, model, device and settings but for `variable`, and equal output counts in every round."""
    first, second = log.one("benchmark", MAKE), other.one("benchmark", MAKE)
    for side, event in ((log, first), (other, second)):
        if variable not in event["config"]:
            known = ", ".join(sorted(event["config"]))
            raise LabError(f"{side.path} has no setting {variable!r}; --variable takes one of: {known}")
    _need_graphs(first, second, variable)
    findings = Findings(first)
    for part, name in IDENTITY:
        findings.expect(f"{part} {name} is the same", second[part].get(name), first[part].get(name))
    for name in sorted(first["config"].keys() | second["config"].keys()):
        values = [event["config"].get(name) for event in (first, second)]
        if name == variable:
            findings.expect(f"{name} differs, being the variable", values[0] != values[1], True)
        else:
            findings.expect(f"{name} is the same", values[1], values[0])
    counts = [[run["output_tokens"] for run in event["runs"]] for event in (first, second)]
    findings.expect("output tokens of every round", counts[1], counts[0])
    expected = first["config"]["seqs"] * first["config"]["output_len"]
    findings.expect("output tokens of a round", sorted(set(counts[0])), [expected])
    findings.facts = {"variable": variable, "output_tokens": counts[0]} | _ratio(first, second, variable)
    return findings


def _need_graphs(first: Event, second: Event, variable: str) -> None:
    """Eager against graph needs a run that replayed graphs; on CPU no run does."""
    on_cpu = "cpu" in (first["device"]["kind"], second["device"]["kind"])
    if variable == "eager" and on_cpu and first["config"]["eager"] and second["config"]["eager"]:
        raise MissingPrerequisite(
            "both runs were eager: CUDA graphs need a CUDA device, so there is nothing to compare"
        )


def _ratio(first: Event, second: Event, variable: str) -> dict[str, Any]:
    """other / log; for `eager` always graph / eager, whichever log came first."""
    of, to = second, first
    if variable == "eager" and second["config"]["eager"] and not first["config"]["eager"]:
        of, to = first, second
    sides = {
        name: {
            variable: event["config"][variable],
            "median_tokens_per_second": event["median_tokens_per_second"],
            "tokens_per_second": [run["tokens_per_second"] for run in event["runs"]],
            "init_seconds": event["init_seconds"],
            "kv_blocks": event["kv_blocks"],
        }
        for name, event in (("numerator", of), ("denominator", to))
    }
    ratio = of["median_tokens_per_second"] / to["median_tokens_per_second"]
    return {"throughput_ratio": ratio, "sides": sides}
