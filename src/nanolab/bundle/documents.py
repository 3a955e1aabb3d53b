"""CHECKPOINTS.md and VALIDATION.md: written from the manual's pages and result blocks, never by hand.

Both stand at the root of the repository and of the bundle; only the links differ, because the bundle has the built
site and the repository its sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from nanolab.bundle import validation
from nanolab.bundle.plain import Plain
from nanolab.manual import commands
from nanolab.manual.blocks import BlockStore
from nanolab.manual.texts import Language

__all__ = ["NAMES", "Place", "render"]

NAMES = ("CHECKPOINTS.md", "VALIDATION.md")

Place = Callable[[Language, str, str], str]

_HEADS = {
    "CHECKPOINTS.md": (
        "# 检查点 · Checkpoints\n\n"
        "每个阶段：要运行的命令、应有的证据、失败时先看哪里。由手册的检查点页生成，不要手改。\n\n"
        "For each stage: the commands, the expected evidence, and where to look after a failure. Generated from the "
        "manual's checkpoints page; do not edit.\n\n[中文](#中文) · [English](#english)\n"
    ),
}


def in_repository(language: Language, page: str, fragment: str) -> str:
    """Where a page is read in the repository: its source."""
    return f"docs/{language}/{page}.md" + (f"#{fragment}" if fragment else "")


def in_bundle(language: Language, page: str, fragment: str) -> str:
    """Where a page is read in the bundle: the built site."""
    folder = "site/" if language is Language.ZH else "site/en/"
    return f"{folder}{page}.html" + (f"#{fragment}" if fragment else "")


def render(root: Path, place: Place = in_repository) -> dict[str, str]:
    """{name: text} of both documents, from the sources in `root`."""
    sections = commands.load(root)
    store = BlockStore(root, sections)
    return {
        "CHECKPOINTS.md": _checkpoints(root, sections, store, place),
        "VALIDATION.md": validation.render(root, store, place),
    }


def _link(root: Path, place: Place, language: Language, page: str, fragment: str) -> str:
    sources = (root / "docs" / language / f"{page}{suffix}" for suffix in (".md", ".ipynb"))
    return place(language, page, fragment) if any(source.is_file() for source in sources) else ""


def _checkpoints(root: Path, sections: Sequence[commands.Section], store: BlockStore, place: Place) -> str:
    parts = [_HEADS["CHECKPOINTS.md"]]
    for language, name, missing in (
        (Language.ZH, "中文", "检查点页还没有写。"),
        (Language.EN, "English", "The checkpoints page is not written yet."),
    ):
        source = root / "docs" / language / "checkpoints.md"
        parts.append(f"## {name}\n")
        if not source.is_file():
            parts.append(f"{missing}\n")
            continue
        plain = Plain(language, "checkpoints", sections, store, partial(_link, root, place, language))
        text = plain.render(source.read_text(encoding="utf-8"))
        parts.append(text.partition("\n")[2].lstrip("\n") if text.startswith("#") else text)
    return "\n".join(parts)
