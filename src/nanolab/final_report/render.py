"""The report as Markdown, Chinese first and English beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from nanolab.evidence.scrub import shell_line
from nanolab.final_report.collect import EVIDENCE_WORDS, Claim, Collection, pending
from nanolab.final_report.notes import NOTES, is_written
from nanolab.final_report.plan import EXPECTED, MINIMUM, RECORDS, Minimum, recorded_as
from nanolab.verdicts import EvidenceType

__all__ = ["render"]

_FACTS_SHOWN = 8
_SHIPPED = "手册附带 · shipped with the manual"
_RECLAIMED = ("cancelled", "rejected", "slow_consumer", "kv_exhausted", "error", "shutdown")


def render(root: Path, collection: Collection) -> str:
    sections = [
        ["# 终版报告 · Final report"],
        ["每个结论都取自结果块，并标明证据类型；没有的结果列为待完成。"],
        ["Every conclusion is read from a result block, with its evidence type; what is missing is pending."],
        list(_question(root)),
        list(_minimum(collection)),
        list(_conclusions(collection)),
        list(_logs(collection)),
        list(_pending_section(collection)),
        list(_unusable(collection)),
        list(_records(root)),
        list(_notes(root)),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _question(root: Path) -> Iterator[str]:
    yield "## 要回答的问题 · The question\n"
    yield (
        "在怎样的负载与预算下，哪个边界限制了体验或吞吐？改了什么代码？什么检查证明行为不变？"
        "得到了什么，谁付出了代价？\n"
    )
    yield (
        "Under which load and budget does which boundary limit experience or throughput? Which code was changed? "
        "Which checks prove that behaviour held? What was gained, and who pays?\n"
    )
    answers = ("service-runtime", "scheduling-change", "execution-change", "parallel-service")
    written = [note.name for note in NOTES if note.name in answers and is_written(root / "notes", note)]
    where = ", ".join(f"notes/{name}.md" for name in written)
    yield f"答案所在 · Answered in: {where or '尚无笔记 · no note written yet'}"


def _minimum(collection: Collection) -> Iterator[str]:
    yield "## 最低证据 · Minimum evidence\n"
    yield from _table("证据 · Evidence", "状态 · State", "来自 · From")
    for kind in MINIMUM:
        yield _minimum_row(kind, collection)


def _minimum_row(kind: Minimum, collection: Collection) -> str:
    found = [*_settled_claims(kind, collection), *_reclaiming_logs(kind, collection)]
    title = f"{kind.zh} · {kind.en}"
    if not found:
        return _row(title, "PENDING", "需要其一 · needs one of: " + ", ".join(kind.ids + kind.logs))
    evidence, state, source = min(found, key=lambda item: list(EvidenceType).index(item[0]))
    return _row(title, state, f"{source} ({' · '.join(EVIDENCE_WORDS[evidence])})")


def _settled_claims(kind: Minimum, collection: Collection) -> Iterator[tuple[EvidenceType, str, str]]:
    waiting = {item.id for item, _ in pending(collection)}
    for item in EXPECTED:
        claim = collection.find(item) if item.id in kind.ids else None
        if claim is not None and claim.settled:
            state = "PENDING (GPU)" if item.id in waiting else str(claim.block["check"])
            yield claim.evidence, state, claim.name if claim.recorded_here else f"{claim.name}, {_SHIPPED}"


def _reclaiming_logs(kind: Minimum, collection: Collection) -> Iterator[tuple[EvidenceType, str, str]]:
    """Logs in which a request ended otherwise than by finishing its output. A log has no verdict of its own."""
    for name in chain.from_iterable(map(recorded_as, kind.logs)):
        log = collection.logs.get(name)
        if log is not None and log.complete and any(reason in log.reasons for reason in _RECLAIMED):
            yield log.evidence, "有记录 · recorded", name


def _conclusions(collection: Collection) -> Iterator[str]:
    yield "## 结论 · Conclusions"
    settled = [claim for _, claim in sorted(collection.claims.items()) if claim.settled]
    if not settled:
        yield "\n还没有结果块。No result block yet."
    for claim in settled:
        yield from _conclusion(claim)


def _conclusion(claim: Claim) -> Iterator[str]:
    block = claim.block
    origin = "本机运行 · recorded here" if claim.recorded_here else _SHIPPED
    model = block["model"]
    yield f"\n### {claim.name}: {block['title']['zh']} · {block['title']['en']}\n"
    yield f"- 判定 · Verdict: **{block['check']}**" + (" (过期 · stale)" if claim.stale else "")
    words = " · ".join(EVIDENCE_WORDS[claim.evidence])
    yield f"- 证据类型 · Evidence: `{claim.evidence.value}`, {words}; {origin}"
    yield f"- 设备 · Device: {block['device']['name']}; {block['started_at'][:10]}"
    if model is not None:
        synthetic = " (合成权重 · synthetic weights)" if model["synthetic"] else ""
        yield f"- 模型 · Model: {model['name']}{synthetic}"
    yield f"- 命令 · Command: `{shell_line(block['command'])}`"
    facts = list(_facts(block["result"]))
    if facts:
        yield f"- 事实 · Facts: {'; '.join(facts)}"
    yield from (f"- {note}" for note in block["notes"])


def _logs(collection: Collection) -> Iterator[str]:
    if not collection.logs:
        return
    yield "## 事件日志 · Event logs\n"
    yield "只列请求怎样结束，不下结论。How requests ended, without a verdict.\n"
    yield from _table("日志 · Log", "证据类型 · Evidence", "结束原因 · Reasons", "完整 · Complete")
    for log in collection.logs.values():
        reasons = ", ".join(f"{reason} {count}" for reason, count in log.reasons.items())
        words = " · ".join(EVIDENCE_WORDS[log.evidence])
        yield _row(f"runs/{log.name}.jsonl", words, reasons or "无 · none", "是 · yes" if log.complete else "否 · no")


def _facts(result: Mapping[str, Any]) -> Iterator[str]:
    """The first short facts of a block; the rest stay in its file."""
    short = [(key, value) for key, value in result.items() if len(json.dumps(value, ensure_ascii=False)) <= 60]
    for key, value in short[:_FACTS_SHOWN]:
        yield f"{key} = {json.dumps(value, ensure_ascii=False)}"


def _pending_section(collection: Collection) -> Iterator[str]:
    waiting = pending(collection)
    yield "## 待完成 · Pending\n"
    if not waiting:
        yield "无。None."
        return
    yield from _table("结果 · Result", "章节 · Section", "原因 · Reason", "命令 · Command")
    for item, reason in waiting:
        yield _row(item.id, item.section, reason, f"`{item.command}`")


def _unusable(collection: Collection) -> Iterator[str]:
    if collection.unusable:
        yield "## 不可用的文件 · Unusable files\n"
        yield from (f"- `{name}`: {reason}" for name, reason in sorted(collection.unusable.items()))


def _records(root: Path) -> Iterator[str]:
    yield "## 随附记录 · Records beside this report\n"
    for record in RECORDS:
        there = (root / "runs" / record.name).is_file()
        yield f"- `runs/{record.name}`: " + ("有 · present" if there else f"缺 · missing: `{record.command}`")


def _notes(root: Path) -> Iterator[str]:
    yield "## 笔记 · Notes\n"
    yield from _table("笔记 · Note", "章节 · Section", "状态 · State")
    for note in NOTES:
        written = is_written(root / "notes", note)
        there = (root / "notes" / f"{note.name}.md").is_file()
        state = "已写 · written" if written else "空模板 · template" if there else "缺 · missing"
        yield _row(f"notes/{note.name}.md", note.section, state)


def _table(*columns: str) -> Iterator[str]:
    yield _row(*columns)
    yield _row(*["---"] * len(columns))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
