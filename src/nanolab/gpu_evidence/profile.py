"""Reads a torch.profiler trace of engine steps: for each step its ranges, launches and kernels.

Kernels are asynchronous: which step they belong to is said by the launch that caused them (`correlation`), not by the
clock. A CPU range is not kernel time: `step` holds waiting, and kernels of one step may overlap its launches.
Times are microseconds. Without a GPU the work of a step is its outermost operators.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanolab.errors import LabError

__all__ = ["ProfiledStep", "Span", "family", "read_trace", "small_trace", "typical"]

Event = dict[str, Any]
LAUNCHES = ("cuda_runtime", "cuda_driver")
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
FAMILIES = {  # the first whose word is in the name, in lower case
    "communication": ("nccl",),
    "attention": ("flash", "attention", "attend", "merge_kernel"),
    "linear": ("gemm", "gemv", "skinny", "nvjet", "cutlass", "splitk", "cublas", "linear", "matmul", "addmm", "::mm"),
    "norm": ("norm", "rsqrt", "rope"),
    "copy": ("memcpy", "memset", "copy", "cat"),
}


@dataclass(frozen=True)
class Span:
    name: str
    start: float
    end: float

    @property
    def us(self) -> float:
        return self.end - self.start

    @classmethod
    def of(cls, event: Event) -> Span:
        return cls(str(event["name"]), float(event["ts"]), float(event["ts"]) + float(event["dur"]))


@dataclass
class ProfiledStep:
    number: int
    span: Span
    ranges: list[Span] = field(default_factory=list)
    launches: list[Span] = field(default_factory=list)
    work: list[Span] = field(default_factory=list)
    kind: str = "kernels"  # what `work` is: kernels and copies on the GPU, or operators on the CPU

    @property
    def phase(self) -> str:
        return "prefill" if any(inner.name == "prepare_prefill" for inner in self.ranges) else "decode"

    @property
    def busy_us(self) -> float:
        """How long at least one piece of work ran."""
        total, reached = 0.0, float("-inf")
        for span in sorted(self.work, key=lambda span: span.start):
            total += max(0.0, span.end - max(span.start, reached))
            reached = max(reached, span.end)
        return total

    def facts(self) -> dict[str, Any]:
        """What the manual reads off: the CPU range, its parts, the work, and how much of the range it filled."""
        by_family: defaultdict[str, float] = defaultdict(float)
        for span in self.work:
            by_family[family(span.name)] += span.us
        return {
            "step": self.number,
            "phase": self.phase,
            "cpu_range_us": round(self.span.us, 1),
            "ranges_us": {inner.name: round(inner.us, 1) for inner in self.ranges},
            "launches": len(self.launches),
            "work": self.kind,
            "kernels": len(self.work),
            "communications": sum(family(span.name) == "communication" for span in self.work),
            "kernel_us": round(sum(span.us for span in self.work), 1),
            "busy_share": round(self.busy_us / self.span.us, 3),
            "by_family_us": {name: round(us, 1) for name, us in sorted(by_family.items(), key=lambda i: -i[1])},
        }


def family(name: str) -> str:
    """What a kernel is for, judged by its name."""
    lower = name.lower()
    return next((kind for kind, words in FAMILIES.items() if any(word in lower for word in words)), "other")


def read_trace(path: Path) -> list[ProfiledStep]:
    """The complete steps of a Chrome trace written by nanolab.serving.profiler."""
    try:
        events: list[Event] = json.loads(path.read_text("utf-8"))["traceEvents"]
    except (OSError, ValueError, KeyError) as error:
        raise LabError(f"{path} is no profiler trace ({error}); make it with `run.py load --profile-dir`") from error
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    marked = sorted((e for e in spans if e.get("cat") == "user_annotation"), key=lambda event: event["ts"])
    steps = [ProfiledStep(i, Span.of(event)) for i, event in enumerate(e for e in marked if e["name"] == "step")]
    if not steps:
        raise LabError(f"{path} holds no range named step; profile a run with `run.py load --profile-dir`")
    index = StepIndex(steps)
    for event in marked:
        if event["name"] != "step" and (step := index.at(event["ts"])):
            step.ranges.append(Span.of(event))
    index.add_work(spans)
    return steps


class StepIndex:
    """Finds the step in whose CPU range a moment lies."""

    def __init__(self, steps: list[ProfiledStep]) -> None:
        self.steps = steps
        self.ends = [step.span.end for step in steps]

    def at(self, moment: float) -> ProfiledStep | None:
        place = bisect_left(self.ends, moment)
        found = self.steps[place] if place < len(self.steps) else None
        return found if found is not None and found.span.start <= moment else None

    def add_work(self, spans: Iterable[Event]) -> None:
        of_correlation: dict[int, ProfiledStep] = {}
        spans = list(spans)
        for event in spans:
            if event.get("cat") in LAUNCHES and (step := self.at(event["ts"])):
                of_correlation[event["args"].get("correlation", -1)] = step
                if "launch" in event["name"].lower():
                    step.launches.append(Span.of(event))
        for event in spans:
            if event.get("cat") in ON_GPU and (step := of_correlation.get(event["args"].get("correlation", -2))):
                step.work.append(Span.of(event))
        if not any(step.work for step in self.steps):
            self._add_operators(event for event in spans if event.get("cat") == "cpu_op")

    def _add_operators(self, operators: Iterable[Event]) -> None:
        reached: dict[Any, float] = {}
        for step in self.steps:
            step.kind = "operators"
        for event in sorted(operators, key=lambda event: (event["ts"], -event["dur"])):
            if event["ts"] < reached.get(event["tid"], float("-inf")):
                continue  # inside another operator
            reached[event["tid"]] = event["ts"] + event["dur"]
            if owner := self.at(event["ts"]):
                owner.work.append(Span.of(event))


def typical(steps: list[ProfiledStep]) -> dict[str, ProfiledStep]:
    """The decode step of median length and the prefill step with the most work, where the trace has them."""
    chosen: dict[str, ProfiledStep] = {}
    decodes = sorted((step for step in steps if step.phase == "decode"), key=lambda step: step.span.us)
    prefills = [step for step in steps if step.phase == "prefill"]
    if decodes:
        chosen["decode"] = decodes[len(decodes) // 2]
    if prefills:
        chosen["prefill"] = max(prefills, key=lambda step: sum(span.us for span in step.work))
    return chosen


def top_work(steps: Iterable[ProfiledStep], rows: int = 12) -> list[dict[str, Any]]:
    """The kernels that took most time over all steps, with calls and microseconds."""
    calls: Counter[str] = Counter()
    us: defaultdict[str, float] = defaultdict(float)
    for step in steps:
        for span in step.work:
            calls[span.name] += 1
            us[span.name] += span.us
    order = sorted(us, key=lambda name: -us[name])[:rows]
    return [
        {"name": name[:90], "family": family(name), "calls": calls[name], "us": round(us[name], 1)} for name in order
    ]


def small_trace(chosen: Iterable[ProfiledStep]) -> dict[str, Any]:
    """A Chrome trace of these steps alone, from time 0 each, one process a step: small enough to be kept."""
    events: list[Event] = []
    for pid, step in enumerate(chosen, 1):
        lanes = {1: [step.span, *step.ranges], 2: step.launches, 3: step.work}
        names = {0: f"step {step.number}, {step.phase}", 1: "CPU ranges", 2: "launches", 3: step.kind}
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": names[0]}})
        for tid, spans in lanes.items():
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": names[tid]}})
            for span in spans:
                start = round(span.start - step.span.start, 3)
                shown = {
                    "ph": "X",
                    "name": span.name[:90],
                    "pid": pid,
                    "tid": tid,
                    "ts": start,
                    "dur": round(span.us, 3),
                }
                events.append(shown)
    return {"traceEvents": events, "displayTimeUnit": "ms"}
