"""The fenced syntaxes of the manual's pages (block, source, figure, map, program, evidence-index) and inline `value`.

docs/AUTHORING.md documents them for authors. A fence that cannot be honoured logs a warning that names the page, which
stops a strict build, and leaves a visible error card for `mkdocs serve`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.plugins import get_plugin_logger
from mkdocs.utils import get_relative_url

from nanolab.evidence.scrub import shell_line
from nanolab.manual import cards, excerpts, pages, programs
from nanolab.manual.blocks import BlockStore, Missing
from nanolab.manual.code import highlighted
from nanolab.manual.errors import ManualError
from nanolab.manual.texts import Language, text
from nanolab.patches import baseline_tree

log = get_plugin_logger("manual")

OPTIONS = {
    "block": {"id", "fields", "labels", "view"},
    "source": {"file", "symbol", "section", "start", "end", "tree"},
    "figure": {"id"},
    "evidence-index": set(),
    "map": set(),
    "program": {"file"},
}
FIGURES_DIR = "docs/figures"

Formatter = Callable[..., str]


@dataclass
class PageState:
    """What the fences of one page have used so far."""

    uri: str = ""
    blocks: list[str] = field(default_factory=list)

    def use(self, block_id: str) -> None:
        if block_id not in self.blocks:
            self.blocks.append(block_id)


@dataclass
class Fences:
    """The formatters of one build; `page` is replaced when the next page begins."""

    root: Path
    language: Language
    store: BlockStore
    page: PageState = field(default_factory=PageState)

    def custom_fences(self) -> list[dict[str, Any]]:
        """For pymdownx.superfences."""
        formats: dict[str, Callable[[dict[str, str], str], str]] = {
            "block": self.block,
            "source": self.source,
            "figure": self.figure,
            "evidence-index": self.evidence_index,
            "map": self.map,
            "program": self.program,
        }
        return [
            {"name": name, "class": name, "validator": _accept_all, "format": self._formatter(name, render)}
            for name, render in formats.items()
        ]

    def custom_inline(self) -> list[dict[str, Any]]:
        """For pymdownx.inlinehilite: `#!value ID path` or `#!value ID path|.1f`."""
        return [{"name": "value", "class": "value", "format": self._inline}]

    def block(self, options: dict[str, str], _body: str) -> str:
        block_id = _required("block", options, "id")
        self.page.use(block_id)
        block = self.store.get(block_id)
        if isinstance(block, Missing):
            block = block.seen_from(PurePosixPath(self.page.uri).stem)
        command = block.section.body if isinstance(block, Missing) else shell_line(block.data["command"])
        return cards.card(
            block,
            self.language,
            command_html=highlighted(command, "bash"),
            fields=_list(options.get("fields", "")),
            labels=_list(options.get("labels", "")),
            view=options.get("view", "table"),
        )

    def source(self, options: dict[str, str], _body: str) -> str:
        file = _required("source", options, "file")
        tree = options.get("tree", "current")
        if tree not in {"current", "baseline"}:
            raise ManualError(f"tree={tree!r}: current or baseline")
        root = baseline_tree(self.root) if tree == "baseline" else self.root
        picked = {key: options.get(key) for key in ("symbol", "section", "start", "end")}
        excerpt = excerpts.extract(root, file, **picked)
        name = options.get("symbol") or options.get("section") or ""
        notes = [text(self.language, "excerpt.baseline")] if tree == "baseline" else []
        caption = self._caption(excerpt, name, notes)
        first = 0 if excerpt.language == "diff" else excerpt.first
        return f'<figure class="nl-source">{caption}{highlighted(excerpt.code, excerpt.language, first)}</figure>'

    def figure(self, options: dict[str, str], body: str) -> str:
        """An SVG of docs/figures, placed inline so that it follows the page's palette; the body is the caption."""
        figure_id = _required("figure", options, "id")
        file = self.root / FIGURES_DIR / f"fig-{figure_id.lower()}.{self.language}.svg"
        if not file.is_file():
            raise ManualError(f"no figure {FIGURES_DIR}/{file.name}")
        caption = " ".join(body.split())
        if not caption:
            raise ManualError(f"figure {figure_id}: the fence's body is its caption and must not be empty")
        svg = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>", "", file.read_text(encoding="utf-8"), flags=re.DOTALL).strip()
        numbered = figure_id[-1].isdigit()  # a picture of a run has a name and no number
        label = f"<strong>{text(self.language, 'figure.label', id=figure_id)}</strong> " if numbered else ""
        return (
            f'<figure class="nl-figure" id="fig-{escape(figure_id.lower())}">'
            f'<div class="nl-scroll" data-search-exclude>{svg}</div>'
            f"<figcaption>{label}{escape(caption)}</figcaption></figure>"
        )

    def evidence_index(self, _options: dict[str, str], _body: str) -> str:
        return cards.index(self.store.all(), self.language, self._users())

    def _users(self) -> dict[str, str]:
        """Block id -> links to the pages that embed it."""
        users: dict[str, list[str]] = {}
        docs = self.root / "docs" / self.language
        here = _page_url(self.page.uri)
        for path in sorted(docs.rglob("*.md")):
            markdown = path.read_text(encoding="utf-8")
            url = get_relative_url(_page_url(path.relative_to(docs).as_posix()), here)
            link = f'<a href="{url}">{escape(pages.short_title(markdown))}</a>'
            for block_id in pages.uses_of_blocks(markdown):
                users.setdefault(block_id, []).append(link)
        return {block_id: ", ".join(links) for block_id, links in users.items()}

    def map(self, _options: dict[str, str], body: str) -> str:
        """Cards that lead to pages, one a line: `PATH.md | title | sentence`; an unwritten page is only named."""
        items = []
        for line in filter(str.strip, body.splitlines()):
            parts = [part.strip() for part in line.split("|")]
            if len(parts) != 3:
                raise ManualError(f"map: a line is 'PATH.md | title | sentence', saw {line!r}")
            path, title, sentence = parts
            inner = f"<strong>{escape(title)}</strong> {escape(sentence)}"
            if (self.root / "docs" / self.language / path).is_file():
                here = _page_url(self.page.uri)
                items.append(f'<a class="nl-map__item" href="{get_relative_url(_page_url(path), here)}">{inner}</a>')
            else:
                items.append(f'<div class="nl-map__item nl-map__item--planned">{inner}</div>')
        return f'<div class="nl-map">{"".join(items)}</div>'

    def program(self, options: dict[str, str], _body: str) -> str:
        file = _required("program", options, "file")
        return programs.render(programs.load(self.root, file), file, self.language)

    def value(self, source: str) -> str:
        """`ID path` or `ID path|format`."""
        target, _, spec = source.partition("|")
        block_id, _, path = target.strip().partition(" ")
        if not path.strip():
            raise ManualError(f"`#!value {source}`: write the block's id, a space, and the path of a value")
        self.page.use(block_id)
        return cards.inline(self.store.get(block_id), self.language, path.strip(), spec.strip())

    def _caption(self, excerpt: excerpts.Excerpt, name: str, notes: Iterable[str]) -> str:
        if excerpt.language == "diff":
            where = text(self.language, "excerpt.patch")
        elif excerpt.first == excerpt.last:
            where = text(self.language, "excerpt.line", first=excerpt.first)
        else:
            where = text(self.language, "excerpt.lines", first=excerpt.first, last=excerpt.last)
        rest = [f"<code>{escape(name)}</code>"] if name else []
        rest += [escape(part) for part in (where, *notes)]
        return f"<figcaption><code>{escape(excerpt.file)}</code> · {' · '.join(rest)}</figcaption>"

    def _formatter(self, name: str, render: Callable[[dict[str, str], str], str]) -> Formatter:
        def formatter(source: str, _language: str, _css: str, options: dict[str, Any], _md: Any, **_: Any) -> str:
            try:
                unknown = sorted(set(options) - OPTIONS[name])
                if unknown:
                    known = ", ".join(sorted(OPTIONS[name])) or "none"
                    raise ManualError(f"{name}: unknown option {', '.join(unknown)}; known: {known}")
                return render(options, source)
            except Exception as error:  # superfences would swallow it and print the fence as text
                return self._failed(f"{name} {options}", error)

        return formatter

    def _inline(self, src: str, _language: str, _css: str, _md: Any) -> str:
        try:
            return self.value(src)
        except Exception as error:  # as above
            return self._failed(f"value {src}", error)

    def _failed(self, what: str, error: Exception) -> str:
        why = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
        log.warning("%s: %s: %s", self.page.uri, what, why)
        return cards.error_card(self.language, str(why))


def _page_url(source: str) -> str:
    """The address of a page's file, from the site's root."""
    return re.sub(r"\.(md|ipynb)$", ".html", source)


def _accept_all(_language: str, inputs: dict[str, Any], options: dict[str, Any], _attrs: Any, _md: Any) -> bool:
    options.update(inputs)
    return True


def _required(name: str, options: dict[str, str], key: str) -> str:
    value = options.get(key)
    if not isinstance(value, str) or not value:
        raise ManualError(f'{name}: needs {key}="..."')
    return value


def _list(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())
