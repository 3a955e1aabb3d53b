"""Every sentence that the build itself writes into a page, in both languages."""

from __future__ import annotations

from enum import StrEnum


class Language(StrEnum):
    ZH = "zh"
    EN = "en"

    @property
    def other(self) -> Language:
        return Language.EN if self is Language.ZH else Language.ZH


_TEXTS: dict[str, tuple[str, str]] = {
    # result cards
    "verdict.PASS": ("通过", "every check held"),
    "verdict.COLLECTED": ("已采集", "recorded, nothing to accept"),
    "verdict.FAIL": ("未通过", "a check did not hold"),
    "verdict.REVIEW": ("待人工判断", "a person has to judge"),
    "verdict.PENDING": ("待运行", "not run yet"),
    "evidence.gpu": ("真实 GPU 运行", "real GPU run"),
    "evidence.cpu-engine": ("真实引擎，CPU", "real engine, CPU"),
    "evidence.cpu-scheduler": ("真实调度器，合成 token", "real scheduler, synthetic tokens"),
    "evidence.cpu-simulation": ("完整接口，模拟引擎", "full interface, simulated engine"),
    "evidence.static": ("静态计算", "arithmetic"),
    "card.region": ("实测结果", "Recorded result"),
    "card.synthetic": ("合成权重", "synthetic weights"),
    "card.stale": ("已过期", "stale"),
    "card.stale.why": (
        "记录之后，决定这个结果的源码改过；请重跑下面的命令。",
        "The sources that decide this result have changed since it was recorded; rerun the command below.",
    ),
    "card.conditions": ("运行条件", "Conditions of this run"),
    "card.field": ("字段", "Field"),
    "card.value": ("值", "Value"),
    "card.id": ("编号", "Id"),
    "card.command": ("命令", "Command"),
    "card.device": ("设备", "Device"),
    "card.engine": ("引擎", "Engine"),
    "card.model": ("模型", "Model"),
    "card.versions": ("版本", "Versions"),
    "card.date": ("记录时间", "Recorded"),
    "card.duration": ("用时", "Took"),
    "card.commit": ("仓库提交", "Repository commit"),
    "card.dirty": ("含未提交改动", "with uncommitted changes"),
    "card.notes": ("备注", "Notes"),
    "card.pending": (
        "这个结果还没有记录。运行下面的命令会生成它：",
        "This result has not been recorded yet. The command below makes it:",
    ),
    "card.error": ("这里的内容无法生成", "This content could not be generated"),
    # the evidence index
    "index.type": ("证据类型", "Evidence type"),
    "index.device": ("设备", "Device"),
    "index.verdict": ("结论", "Verdict"),
    "index.stale": ("时效", "Freshness"),
    "index.fresh": ("有效", "current"),
    "index.all": ("全部", "all"),
    "index.title": ("结果", "Result"),
    "index.date": ("日期", "Date"),
    "index.count": ("显示 {shown} / {all} 条", "showing {shown} of {all}"),
    "index.empty": ("还没有任何结果块。", "There are no result blocks yet."),
    "index.pages": ("出现在", "Used in"),
    # page line
    "page.verified": ("最近验证", "Last verified"),
    "page.blocks": ("{n} 个结果块", "{n} result blocks"),
    "page.block": ("{n} 个结果块", "{n} result block"),
    "page.pending": ("{n} 个待运行", "{n} pending"),
    "page.stale": ("{n} 个已过期", "{n} stale"),
    "page.none": ("本页的结果还没有记录", "No result of this page has been recorded yet"),
    "page.planned": ("这一页还没有写", "This page is not written yet"),
    "page.search": ("搜索", "Search"),
    # commands
    "tier.cpu": ("CPU 上可运行，已由 CI 执行", "runs on CPU, executed by CI"),
    "tier.gpu": ("需要 GPU", "needs a GPU"),
    "tier.doc": ("在你的环境里运行", "run in your own environment"),
    "program.option": ("选项", "Option"),
    "program.none": ("没有选项。", "It takes no options."),
    "program.meaning": ("含义", "Meaning"),
    # excerpts and figures
    "excerpt.lines": ("第 {first}–{last} 行", "lines {first}–{last}"),
    "excerpt.line": ("第 {first} 行", "line {first}"),
    "excerpt.baseline": ("打补丁之前", "before the patches"),
    "excerpt.patch": ("补丁", "patch"),
    "figure.label": ("图 {id}", "Figure {id}"),
}


# Titles of admonitions that an author leaves untitled.
_ADMONITIONS = {
    "note": "说明",
    "info": "说明",
    "tip": "提示",
    "hint": "提示",
    "question": "问题",
    "warning": "注意",
    "danger": "危险",
    "failure": "卡住时",
    "success": "验收",
    "example": "例子",
    "abstract": "小结",
}


def admonition_title(language: Language, kind: str) -> str:
    """The title of an untitled admonition; empty where the theme's own English word is right."""
    return _ADMONITIONS.get(kind, "") if language is Language.ZH else ""


def text(language: Language, key: str, **values: object) -> str:
    """The sentence `key` in `language`; a missing key is a bug here, so it raises KeyError."""
    sentence = _TEXTS[key][0 if language is Language.ZH else 1]
    return sentence.format(**values) if values else sentence
