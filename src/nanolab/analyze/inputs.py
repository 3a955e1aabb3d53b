"""Slots and runner: the tensors of every step, against what the scheduler's tables and counts imply."""

from __future__ import annotations

from typing import Any

from .findings import Findings
from .log import EventLog, StepEvents

SHOWN_SLOTS = 8
TRACES = ("lifecycle", "chunk", "prefix")


def analyze_slots(log: EventLog) -> Findings:
    """slot = block_table[position // block] * block + position % block, recomputed for every round."""
    findings = Findings(log.trace_of(*TRACES))
    size = findings.run["config"]["block_size"]
    table = []
    for step in log.steps():
        wanted, seen = slots_of(step, size), step.inputs["slot_mapping"]
        row = {
            "step": step.number,
            "phase": step.phase,
            "positions": step.inputs["positions"][:SHOWN_SLOTS],
            "block_tables": {e["request"]: e["block_table"] for e in step.scheduled["batch"]},
            "recomputed": wanted[:SHOWN_SLOTS],
            "logged": seen[:SHOWN_SLOTS],
        }
        table.append(row)
        findings.expect(f"step {step.number}, first {SHOWN_SLOTS} slots", seen[:SHOWN_SLOTS], wanted[:SHOWN_SLOTS])
        findings.expect(f"step {step.number}, all {len(wanted)} slots", seen == wanted, True)
    findings.facts = {"block_size": size, "rounds": table}
    return findings


def slots_of(step: StepEvents, block_size: int) -> list[int]:
    """The slots of a step from its `scheduled` event alone."""
    slots = []
    for entry in step.scheduled["batch"]:
        table, start = entry["block_table"], entry["cached"]
        own = range(start, start + entry["scheduled"])
        slots += [table[p // block_size] * block_size + p % block_size for p in own]
    return slots


def analyze_runner(log: EventLog) -> Findings:
    """The runner's metadata, round by round: general rules for each, stated values for the first ones."""
    findings = Findings(log.trace_of(*TRACES))
    steps = log.steps()
    for step in steps:
        _general_rules(findings, step)
    _STATED[findings.run["case"]](findings, steps)
    names = ("input_shape", "cu_seqlens_q", "cu_seqlens_k", "context_lens", "block_tables")
    findings.facts = {
        "case": findings.run["case"],
        "rounds": [{"step": s.number, "phase": s.phase} | {name: s.inputs[name] for name in names} for s in steps],
        "last_rows": {str(s.number): last_rows(s) for s in steps if s.phase == "prefill"},
    }
    return findings


def last_rows(step: StepEvents) -> list[int]:
    """The input rows whose logits are used: cu_seqlens_q[1:] - 1."""
    return [end - 1 for end in step.inputs["cu_seqlens_q"][1:]]


def _general_rules(findings: Findings, step: StepEvents) -> None:
    batch, inputs, at = step.scheduled["batch"], step.inputs, f"step {step.number}"
    positions = [p for e in batch for p in range(e["cached"], e["cached"] + e["scheduled"])]
    findings.expect(f"{at}, positions follow cached and scheduled", inputs["positions"] == positions, True)
    if step.phase == "decode":
        findings.expect(f"{at}, context_lens are the totals", inputs["context_lens"], [e["total"] for e in batch])
        return
    queries = _bounds([e["scheduled"] for e in batch])
    keys = _bounds([e["cached"] + e["scheduled"] for e in batch])
    findings.expect(f"{at}, cu_seqlens_q", inputs["cu_seqlens_q"], queries)
    findings.expect(f"{at}, cu_seqlens_k", inputs["cu_seqlens_k"], keys)
    findings.expect(f"{at}, block tables only if keys exceed queries", bool(inputs["block_tables"]), keys != queries)


def _bounds(lengths: list[int]) -> list[int]:
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    return bounds


def _state(findings: Findings, what: str, step: StepEvents, **wanted: Any) -> None:
    for name, value in wanted.items():
        findings.expect(f"{what}, {name}", step.inputs[name], value)


def _lifecycle(findings: Findings, steps: list[StepEvents]) -> None:
    bounds = [0, 64, 160]
    _state(
        findings, "prefill", steps[0], input_shape=[160], cu_seqlens_q=bounds, cu_seqlens_k=bounds, block_tables=None
    )
    findings.expect("prefill, last rows", last_rows(steps[0]), [63, 159])
    _state(findings, "first decode", steps[1], input_shape=[2], positions=[64, 96], context_lens=[65, 97])


def _chunk(findings: Findings, steps: list[StepEvents]) -> None:
    _state(findings, "round 1", steps[0], input_shape=[512], cu_seqlens_k=[0, 512], block_tables=None)
    _state(findings, "round 2", steps[1], input_shape=[220], cu_seqlens_q=[0, 188, 220], cu_seqlens_k=[0, 700, 732])
    findings.expect("round 2, last rows", last_rows(steps[1]), [187, 219])


def _prefix(findings: Findings, steps: list[StepEvents]) -> None:
    second = next((s for s in steps if s.scheduled["batch"][0]["request"] == "B"), steps[-1])
    findings.expect("second request, queries", second.inputs["input_shape"], [108])
    findings.expect("second request, keys", second.inputs["cu_seqlens_k"], [0, 620])
    findings.expect("second request, block tables present", bool(second.inputs["block_tables"]), True)


_STATED = {"lifecycle": _lifecycle, "chunk": _chunk, "prefix": _prefix}
