"""VALIDATION.md: what was checked before this release, where and on what, and what nobody has run yet.

Everything is read from the result blocks, the command sections and the setup page. A result counts for the device it
was recorded on and for no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nanolab.doctor.checks import REFERENCE
from nanolab.errors import LabError
from nanolab.manual import cards
from nanolab.manual.blocks import BlockStore, Missing, Recorded
from nanolab.manual.commands import Tier
from nanolab.manual.texts import Language, text
from nanolab.verdicts import EvidenceType, Verdict

__all__ = ["render", "summary"]

Place = Callable[[Language, str, str], str]

SETUP_PAGE = "ch5/5-1-setup"
_VERSIONS = ("python", "torch", "triton", "flash_attn", "transformers")


def render(root: Path, store: BlockStore, place: Place) -> str:
    """The file's text. `place` gives the address of a page."""
    blocks = store.all()
    recorded = [block for block in blocks if isinstance(block, Recorded)]
    waiting = [block for block in blocks if isinstance(block, Missing)]
    sections = (
        _introduction(),
        _devices(recorded),
        _checked(recorded),
        _waiting(waiting, Tier.GPU, "还在等 GPU 的 · Still waiting for a GPU"),
        _waiting(waiting, Tier.CPU, "还没有记录的 CPU 结果 · CPU results not recorded yet"),
        _waiting(waiting, Tier.DOC, "要在自己的环境里做的 · To be made in an environment of your own"),
        _reference(root, recorded, place),
        _again(),
    )
    return "\n".join("\n".join(lines) + "\n" for lines in map(list, sections) if lines)


def summary(store: BlockStore) -> list[dict[str, Any]]:
    """One record a block, for validation/records.json."""
    return [_record(block) for block in store.all()]


def _record(block: Recorded | Missing) -> dict[str, Any]:
    if isinstance(block, Missing):
        commands = [section.ref for section in block.sections]
        return {"id": block.id, "check": block.verdict, "needs": str(_tier(block)), "commands": commands}
    data = block.data
    kept = ("title", "evidence", "device", "versions", "started_at", "command", "git")
    return {"id": block.id, "check": block.verdict, "stale": block.stale} | {key: data.get(key) for key in kept}


def _introduction() -> Iterator[str]:
    yield "# 验证范围 · Validation\n"
    yield "发布前检查了什么、在哪里、用什么设备，以及还有什么等着 GPU。全部由结果块生成，不要手改。\n"
    yield (
        "What was checked before this release, where, on what device, and what still waits for a GPU. Generated from "
        "the result blocks; do not edit.\n"
    )
    yield "一个结果只对记录它的那台设备有效：CPU 上的 PASS 不替任何 GPU 作证，一种 GPU 也不替另一种作证。"
    yield (
        "\nA result holds for the device it was recorded on: a PASS on a CPU vouches for no GPU, and one GPU does not "
        "vouch for another."
    )


def _devices(recorded: Sequence[Recorded]) -> Iterator[str]:
    yield "## 设备 · Devices\n"
    if not recorded:
        yield "还没有任何结果块。No result block has been recorded yet."
        return
    yield from _table("设备 · Device", "证据 · Evidence", "结果 · Results", "结论 · Verdicts")
    kinds = sorted({(_device(block), str(block.data["evidence"])) for block in recorded})
    for device, kind in kinds:
        held = [b for b in recorded if (_device(b), str(b.data["evidence"])) == (device, kind)]
        counts = Counter(block.verdict for block in held)
        verdicts = ", ".join(f"{verdict} {counts[verdict]}" for verdict in map(str, Verdict) if counts[verdict])
        yield _row(device, f"`{kind}`", str(len(held)), verdicts)


def _checked(recorded: Sequence[Recorded]) -> Iterator[str]:
    if not recorded:
        return
    yield "## 已检查 · What was checked"
    for kind in EvidenceType:
        held = [block for block in recorded if block.data["evidence"] == kind.value]
        if not held:
            continue
        yield f"\n### {_both(f'evidence.{kind}')} (`{kind}`)\n"
        yield from _table("结果 · Result", "结论 · Verdict", "设备 · Device", "版本 · Versions", "日期 · Date")
        yield from map(_checked_row, held)


def _checked_row(block: Recorded) -> str:
    titles = dict.fromkeys(cards.title(block, language) for language in Language)
    synthetic = f"; {_both('card.synthetic')}" if (block.data.get("model") or {}).get("synthetic") else ""
    stale = f" ({_both('card.stale')})" if block.stale else ""
    versions = block.data.get("versions") or {}
    shown = ", ".join(f"{name} {versions[name]}" for name in _VERSIONS if versions.get(name))
    return _row(
        f"`{block.id}`: {' · '.join(titles)}{synthetic}", f"{block.verdict}{stale}", _device(block), shown, block.date
    )


def _waiting(waiting: Sequence[Missing], tier: Tier, title: str) -> Iterator[str]:
    held = [block for block in waiting if _tier(block) is tier]
    if not held:
        return
    yield f"## {title}\n"
    yield from _table("结果 · Result", "命令 · Command", "原因 · Reason")
    for block in held:
        section = next(s for s in block.sections if s.tier is tier)
        reason = " · ".join(filter(None, section.reasons))
        yield _row(f"`{block.id}`", f"`docs/commands/{section.file}.sh`: `{section.name}`", reason)


def _tier(block: Missing) -> Tier:
    """Where a missing block can be made: on a CPU if any section makes it there, else on a GPU."""
    tiers = {section.tier for section in block.sections}
    return next(tier for tier in (Tier.CPU, Tier.GPU, Tier.DOC) if tier in tiers)


def _reference(root: Path, recorded: Sequence[Recorded], place: Place) -> Iterator[str]:
    yield "## 参照环境 · The reference environment\n"
    links = [f"[5.1.1]({place(language, SETUP_PAGE, 'fix-the-objects')})" for language in Language]
    yield f"手册的 GPU 路线以下面的主机为参照（{links[0]}）。\n"
    yield f"The manual's GPU path is written for this host ({links[1]}).\n"
    zh, en = (reference_table(root, language) for language in Language)
    yield from _table("项目 · Item", "参照值 · Reference")
    for (name_zh, value_zh), (name_en, value_en) in zip(zh, en, strict=True):
        yield _row(*(" · ".join(dict.fromkeys(pair)) for pair in ((name_zh, name_en), (value_zh, value_en))))
    for package, version in REFERENCE.items():
        yield _row(package, version)
    runs = [block for block in recorded if _is_reference(block, en)]
    if runs:
        yield f"\n在这台参照机型上记录了 {len(runs)} 个结果。{len(runs)} results were recorded on this GPU model."
    else:
        yield (
            "\n**没有在参照环境上运行过。** 上面没有一个结果来自这种 GPU。"
            " **Not run on the reference environment.** No result above comes from this GPU model."
        )


def reference_table(root: Path, language: Language) -> list[tuple[str, str]]:
    """The rows of the setup page's table of the reference host."""
    path = root / "docs" / language / f"{SETUP_PAGE}.md"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    at = next((number for number, line in enumerate(lines) if line.startswith("| GPU |")), None)
    if at is None:
        raise LabError(f"{path.name} has no row '| GPU | ...': VALIDATION.md takes the reference host from that table.")
    first = next(n for n in range(at, -1, -1) if n == 0 or not lines[n - 1].startswith("|"))
    last = next((n for n in range(at, len(lines)) if not lines[n].startswith("|")), len(lines))
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[first + 2 : last]]
    return [(row[0], row[1]) for row in rows]


def _is_reference(block: Recorded, table: Sequence[tuple[str, str]]) -> bool:
    gpu = next(value for name, value in table if name == "GPU")
    device = block.data["device"]
    return bool(device["kind"] == "cuda" and device["name"] and device["name"] in gpu)


def _again() -> Iterator[str]:
    yield "## 再检查一次 · Check again\n"
    yield "```bash"
    yield "sha256sum -c --quiet SHA256SUMS"
    yield "python scripts/maintain/commands.py run --tier cpu"
    yield "python scripts/maintain/evidence.py verify"
    yield "```\n"
    yield "第一条核对文件，第二条重跑手册的每条 CPU 命令，第三条重跑 CPU 结果块并比较每个确定的值。"
    yield (
        "\nThe first checks the files, the second runs every CPU command of the manual, the third re-runs the CPU "
        "result blocks and compares every deterministic value."
    )


def _device(block: Recorded) -> str:
    device = block.data.get("device") or {}
    many = f" × {device['count']}" if device.get("kind") == "cuda" and device.get("count", 1) > 1 else ""
    return cards.device_name(block.data) + many


def _both(key: str) -> str:
    return f"{text(Language.ZH, key)} · {text(Language.EN, key)}"


def _table(*columns: str) -> Iterator[str]:
    yield _row(*columns)
    yield _row(*["---"] * len(columns))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
