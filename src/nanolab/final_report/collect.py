"""Gathering the recorded blocks and event logs of one lab directory, and what is still pending among them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanolab.errors import LabError
from nanolab.evidence.promote import block_paths
from nanolab.evidence.provenance import is_stale
from nanolab.evidence.schema import Block, load
from nanolab.final_report.plan import EXPECTED, Expected, Needs, recorded_as
from nanolab.verdicts import EvidenceType, Verdict

__all__ = ["EVIDENCE_WORDS", "Claim", "Collection", "EventLog", "collect", "pending"]

EVIDENCE_WORDS = {
    EvidenceType.GPU: ("真实 GPU 测量", "real GPU measurement"),
    EvidenceType.CPU_ENGINE: ("真实引擎，CPU", "real engine, on CPU"),
    EvidenceType.CPU_SCHEDULER: ("真实调度器的 CPU 状态流", "real scheduler, CPU state flow"),
    EvidenceType.CPU_SIMULATION: ("完整接口的 CPU 模拟", "full interface, simulated on CPU"),
    EvidenceType.STATIC: ("静态推算", "static arithmetic"),
}


@dataclass(frozen=True)
class Claim:
    """One block, where it came from and whether its sources have changed since."""

    name: str  # the file's stem
    block: Block
    recorded_here: bool  # runs/ of this learner, not the manual's docs/evidence/
    stale: bool

    @property
    def evidence(self) -> EvidenceType:
        return EvidenceType(self.block["evidence"])

    @property
    def settled(self) -> bool:
        return bool(self.block["check"] != Verdict.PENDING.value)


@dataclass(frozen=True)
class EventLog:
    """A raw event log of runs/: how its requests ended, and what kind of run it says it was. No verdict."""

    name: str  # the file's stem
    evidence: EvidenceType
    reasons: dict[str, int]  # how many requests finished with each reason
    complete: bool


@dataclass(frozen=True)
class Collection:
    """Everything usable under one root, by file stem, and what could not be used."""

    claims: dict[str, Claim]
    logs: dict[str, EventLog] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)

    def find(self, item: Expected) -> Claim | None:
        """The strongest block for `item`; of equals, the one recorded here."""
        held = [self.claims[name] for name in recorded_as(item.id) if name in self.claims]
        strength = list(EvidenceType)
        return min(held, key=lambda c: (strength.index(c.evidence), not c.recorded_here), default=None)


def collect(root: Path) -> Collection:
    """Read every block of `root`; one that is broken is reported, never guessed at."""
    claims: dict[str, Claim] = {}
    unusable: dict[str, str] = {}
    for directory, recorded_here in ((root / "docs" / "evidence", False), (root / "runs", True)):
        for path in block_paths(directory):
            try:
                block = load(path)
            except LabError as error:
                unusable[path.relative_to(root).as_posix()] = error.format_message().splitlines()[0]
            else:
                claims[path.stem] = Claim(path.stem, block, recorded_here, is_stale(block, root))
    return Collection(claims, _collect_logs(root, unusable), unusable)


def _collect_logs(root: Path, unusable: dict[str, str]) -> dict[str, EventLog]:
    logs = {}
    for path in sorted((root / "runs").glob("*.jsonl")):
        try:
            logs[path.stem] = _read_log(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            unusable[path.relative_to(root).as_posix()] = f"no event log: {type(error).__name__}: {error}"
    return logs


def _read_log(path: Path) -> EventLog:
    """Count the terminal events that the engine observed; the run's header says what kind of evidence it is."""
    header, *events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    finished = [event for event in events if event["event"] == "finished"]
    return EventLog(
        name=path.stem,
        evidence=EvidenceType.CPU_SIMULATION if header["simulated"] else EvidenceType(header["evidence"]),
        reasons=dict(sorted(Counter(event["reason"] for event in finished).items())),
        complete=bool(events) and events[-1]["event"] == "end" and bool(events[-1]["complete"]),
    )


def pending(collection: Collection) -> list[tuple[Expected, str]]:
    """What the manual asks for and nothing proves yet, each with the reason."""
    found = [(item, _why_pending(item, collection)) for item in EXPECTED]
    return [(item, reason) for item, reason in found if reason]


def _why_pending(item: Expected, collection: Collection) -> str:
    claim = collection.find(item)
    broken = collection.unusable.get(f"runs/{item.id}.json")
    if claim is None:
        return f"结果块不可用 · block unusable: {broken}" if broken else _NOT_RUN[item.needs]
    if not claim.settled:
        return "; ".join(claim.block["notes"]) or "结果块为 PENDING · its block says PENDING"
    if item.needs is Needs.CPU:
        return ""
    if claim.evidence is not EvidenceType.GPU:
        words = " · ".join(EVIDENCE_WORDS[claim.evidence])
        return f"需要 GPU，现有证据只是 · needs a GPU; the block at hand is only: {words}"
    if item.needs is Needs.TWO_GPUS and not _spans_two_gpus(claim.block):
        return "需要两张 GPU，而没有一次运行跨了两张卡 · needs two GPUs; none of its runs spanned two"
    return ""


def _spans_two_gpus(block: Block) -> bool:
    """Whether a GPU run among the block's inputs was tensor-parallel: each rank of an engine takes a card of its own.

    `device.count` cannot tell: it counts the cards that one process saw, and saw is not used; of two replicas with a
    card each, each saw one.
    """
    runs = block["result"].get("measurements", [])
    return any(run["evidence"] == EvidenceType.GPU and _ranks(run) >= 2 for run in runs)


def _ranks(run: dict[str, Any]) -> int:
    return int(run["config"].get("tensor_parallel_size") or 1)


_NOT_RUN = {
    Needs.CPU: "尚未运行 · not run yet",
    Needs.GPU: "尚未在 GPU 上运行 · not run on a GPU yet",
    Needs.TWO_GPUS: "尚未在两张 GPU 上运行 · not run on two GPUs yet",
}
