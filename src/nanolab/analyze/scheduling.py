"""Lifecycle and chunk: what the scheduler selected, and what was true of each sequence before and after."""

from __future__ import annotations

from typing import Any

from .findings import Findings, Table, by_request
from .log import Event, EventLog, StepEvents

STATE = ("total", "cached", "scheduled")
COLUMNS = (
    "step", "phase", "request", *STATE, "total_after", "cached_after", "accepted", "outputs", "status", "blocks_after",
    "why_en", "why_zh",
)  # fmt: skip


def analyze_lifecycle(log: EventLog) -> Findings:
    """Prompts of 64 and 96, limits of 2 and 3: P, D, D."""
    findings = Findings(log.trace_of("lifecycle"))
    steps = log.steps()
    findings.expect("phases", [step.phase for step in steps], ["prefill", "decode", "decode"])
    first, last = steps[0], steps[-1]
    findings.expect(
        "first step, total/cached/scheduled",
        by_request(first.scheduled["batch"], *STATE),
        {"A": [64, 0, 64], "B": [96, 0, 96]},
    )
    findings.expect(
        "after the first step, total and cached",
        by_request(first.after["batch"], "total", "cached"),
        {"A": [65, 64], "B": [97, 96]},
    )
    ends = {e["request"]: (step.number, e) for step in steps for e in step.after["batch"] if e["status"] == "FINISHED"}
    findings.expect("the short request finishes first", {name: at for name, (at, _) in ends.items()}, {"A": 2, "B": 3})
    outputs = {name: entry["outputs"] for name, (_, entry) in ends.items()}
    findings.expect("output lengths", outputs, {"A": 2, "B": 3})
    findings.expect("cached at the end", {name: e["cached"] for name, (_, e) in ends.items()}, {"A": 0, "B": 0})
    findings.expect("blocks at the end", {name: e["block_table"] for name, (_, e) in ends.items()}, {"A": [], "B": []})
    unfinished = [e for step in steps for e in step.after["batch"] if e["status"] != "FINISHED"]
    findings.expect("unfinished: total - cached", sorted({e["total"] - e["cached"] for e in unfinished}), [1])
    findings.expect("free blocks at the end as at the start", last.after["free_blocks"], first.before["free_blocks"])
    findings.facts = {"steps": len(steps), "output_lengths": outputs, "rounds": rounds(steps)}
    findings.table = state_table(steps)
    return findings


def analyze_chunk(log: EventLog) -> Findings:
    """Prompts of 700 (A) and 32 (B) under a budget of 512: A's first 512, then its last 188 with B, then decode."""
    findings = Findings(log.trace_of("chunk"))
    steps = log.steps()
    findings.expect("budget", findings.run["config"]["max_num_batched_tokens"], 512)
    findings.expect("phases", [step.phase for step in steps][:3], ["prefill", "prefill", "decode"])
    if len(steps) >= 3:
        _first_chunk(findings, steps[0])
        _second_chunk(findings, steps[1])
        findings.expect("round 3 decodes both", [e["request"] for e in steps[2].scheduled["batch"]], ["A", "B"])
    findings.facts = {"steps": len(steps), "rounds": rounds(steps)}
    findings.table = state_table(steps)
    return findings


def _first_chunk(findings: Findings, step: StepEvents) -> None:
    findings.expect(
        "round 1, total/cached/scheduled", by_request(step.scheduled["batch"], *STATE), {"A": [700, 0, 512]}
    )
    after = step.after["batch"][0]
    findings.expect("round 1, total and cached after", [after["total"], after["cached"]], [700, 512])
    findings.expect("round 1, candidate not accepted", [after["accepted"], after["outputs"]], [None, 0])


def _second_chunk(findings: Findings, step: StepEvents) -> None:
    findings.expect(
        "round 2, total/cached/scheduled",
        by_request(step.scheduled["batch"], *STATE),
        {"A": [700, 512, 188], "B": [32, 0, 32]},
    )
    findings.expect("round 2, input positions", step.inputs["input_shape"], [220])
    findings.expect("round 2, cu_seqlens_q", step.inputs["cu_seqlens_q"], [0, 188, 220])
    findings.expect("round 2, cu_seqlens_k", step.inputs["cu_seqlens_k"], [0, 700, 732])
    after = by_request(step.after["batch"], "total", "cached")
    findings.expect("round 2, total and cached after", after, {"A": [701, 700], "B": [33, 32]})


def rounds(steps: list[StepEvents]) -> list[dict[str, Any]]:
    """One entry per step for a result block."""
    return [
        {
            "step": step.number,
            "phase": step.phase,
            "before": by_request(step.scheduled["batch"], *STATE),
            "after": by_request(step.after["batch"], "total", "cached", "accepted", "status"),
        }
        for step in steps
    ]


def state_table(steps: list[StepEvents]) -> Table:
    """One row per sequence and step, each with the reason why it looks as it does."""
    rows = []
    for step in steps:
        for before, after in zip(step.scheduled["batch"], step.after["batch"], strict=True):
            rows.append(
                (step.number, step.phase, before["request"], *(before[name] for name in STATE), after["total"],
                 after["cached"], after["accepted"], after["outputs"], after["status"], after["block_table"],
                 *explain(step.phase, before, after))
            )  # fmt: skip
    return Table(COLUMNS, tuple(rows))


def explain(phase: str, before: Event, after: Event) -> tuple[str, str]:
    """(English, Chinese): why this row's counts changed as they did."""
    reached = before["cached"] + before["scheduled"]
    if after["status"] == "FINISHED":
        return (
            f"output {after['outputs']} reached the limit: finished, blocks returned, cached reset to 0",
            f"第 {after['outputs']} 个输出达到上限：请求结束，归还 block，cached 归零",
        )
    if phase == "decode":
        return (
            f"1 token computed at position {before['total'] - 1}; the new token's KV is not written yet",
            f"计算位置 {before['total'] - 1} 的 1 个 token；新 token 的 KV 尚未写入",
        )
    if reached < before["total"]:
        return (
            f"chunk: KV of positions {before['cached']} to {reached - 1}; the prompt goes on: candidate discarded",
            f"分块：写入位置 {before['cached']} 到 {reached - 1} 的 KV；提示未结束，候选 token 丢弃",
        )
    hit = f"; {before['cached']} tokens were already cached" if before["cached"] else ""
    hit_zh = f"；已有 {before['cached']} 个 token 的缓存" if before["cached"] else ""
    return (
        f"prompt complete: {before['scheduled']} tokens computed{hit}; the candidate becomes the first output",
        f"提示完成：计算 {before['scheduled']} 个 token{hit_zh}；候选 token 成为第一个输出",
    )
