"""A page's Markdown as structure: headings with ids, sections, fences, commands; and what every page must obey.

The reader is line-based on purpose: it knows fences (indented ones too) and headings, and nothing else of Markdown.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from nanolab.manual.commands import COMMANDS_DIR, Section
from nanolab.manual.texts import Language, admonition_title, text

SHELL = frozenset({"bash", "sh", "shell", "console", "zsh"})
CUSTOM = frozenset({"block", "source", "figure", "map", "program", "evidence-index"})

_FENCE = re.compile(r"^(?P<indent>[> \t]*)(?P<mark>`{3,}|~{3,})[ \t]*(?P<header>[^`\n]*?)[ \t]*$")
_HEADING = re.compile(r"^(?P<hashes>#{1,6})[ \t]+(?P<title>.*?)[ \t]*(?:\{(?P<attrs>[^{}]*)\})?[ \t]*$")
_ID = re.compile(r"#([A-Za-z][\w.-]*)")
_OPTIONS = re.compile(r'^(?:\s+[a-zA-Z][a-zA-Z0-9_]*="[^"]*")*\s*$')
_OPTION = re.compile(r'([a-zA-Z][a-zA-Z0-9_]*)="([^"]*)"')
_VALUE = re.compile(r"`#!value\s+([^\s`|]+)")
_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\(([^()\s#]+\.(?:md|ipynb))(?:#[^()\s]*)?\)")
_UNTITLED = re.compile(r"^([ \t]*(?:!!!|\?\?\?\+?)[ \t]+)([a-z]+)[ \t]*$", re.MULTILINE)
_INCLUDE = re.compile(r'^\s*--8<--\s+"(?P<path>[^":]+)(?::(?P<section>[^"]+))?"\s*$')


@dataclass(frozen=True)
class Heading:
    level: int
    id: str  # empty when the author gave none
    title: str
    line: int  # counted from 1


@dataclass(frozen=True)
class Fence:
    header: str  # what follows the backticks
    body: str
    line: int
    indent: str

    @property
    def language(self) -> str:
        """The first word, or the first class of an attribute list."""
        match = re.match(r"\{\s*\.?([\w+-]+)|([\w+-]+)", self.header)
        return (match[1] or match[2]) if match else ""

    @property
    def options(self) -> dict[str, str]:
        return dict(_OPTION.findall(self.header))

    @property
    def include(self) -> str:
        """`FILE:SECTION` when the body is one snippet of docs/commands, else nothing."""
        lines = [line for line in self.body.splitlines() if line.strip()]
        match = _INCLUDE.match(lines[0]) if len(lines) == 1 else None
        if match is None or not match["section"] or not match["path"].startswith(f"{COMMANDS_DIR}/"):
            return ""
        return f"{match['path'].rsplit('/', 1)[1].removesuffix('.sh')}:{match['section']}"


@dataclass(frozen=True)
class Part:
    """A heading with everything up to the next heading of any level."""

    heading: Heading
    text: str  # raw Markdown, the heading line included
    prose: str  # the same without fences
    fences: tuple[Fence, ...]


@dataclass(frozen=True)
class PageText:
    parts: tuple[Part, ...]
    unclosed: int = 0  # line of a fence that is never closed

    @property
    def headings(self) -> tuple[Heading, ...]:
        return tuple(part.heading for part in self.parts if part.heading.level)

    @property
    def fences(self) -> tuple[Fence, ...]:
        return tuple(fence for part in self.parts for fence in part.fences)


def read(markdown: str) -> PageText:
    """Split a page; what stands before the first heading becomes a part of level 0."""
    lines = markdown.split("\n")
    parts: list[Part] = []
    heading = Heading(0, "", "", 1)
    raw: list[str] = []
    prose: list[str] = []
    fences: list[Fence] = []
    unclosed = 0
    number = _after_front_matter(lines)
    while number < len(lines):
        line = lines[number]
        fence = _FENCE.match(line)
        if fence:
            end = _closing(lines, number, fence)
            unclosed = unclosed or (number + 1 if end is None else 0)
            stop = len(lines) if end is None else end
            body = "\n".join(part[len(fence["indent"]) :] for part in lines[number + 1 : stop])
            fences.append(Fence(fence["header"], body, number + 1, fence["indent"]))
            raw.extend(lines[number : stop + 1])
            number = stop + 1
            continue
        match = _HEADING.match(line)
        if match:
            parts.append(Part(heading, "\n".join(raw), "\n".join(prose), tuple(fences)))
            found = _ID.search(match["attrs"] or "")
            heading = Heading(len(match["hashes"]), found[1] if found else "", match["title"], number + 1)
            raw, prose, fences = [], [], []
        raw.append(line)
        prose.append(line)
        number += 1
    parts.append(Part(heading, "\n".join(raw), "\n".join(prose), tuple(fences)))
    return PageText(tuple(p for p in parts if p.heading.level or p.text.strip()), unclosed)


def _after_front_matter(lines: Sequence[str]) -> int:
    if lines and lines[0].strip() == "---":
        for number, line in enumerate(lines[1:], 1):
            if line.strip() == "---":
                return number + 1
    return 0


def _closing(lines: Sequence[str], start: int, fence: re.Match[str]) -> int | None:
    for number in range(start + 1, len(lines)):
        stripped = lines[number].strip("> \t")
        if stripped.startswith(fence["mark"]) and not stripped.strip(fence["mark"][0]):
            return number
    return None


def lint(markdown: str) -> list[str]:
    """What a page must obey in either language; each problem names its line."""
    page = read(markdown)
    problems = [f"line {page.unclosed}: this fence is never closed"] if page.unclosed else []
    seen: dict[str, int] = {}
    for heading in page.headings:
        if not heading.id:
            problems.append(f"line {heading.line}: heading {heading.title!r} needs an explicit {{#id}}")
        elif heading.id in seen:
            problems.append(f"line {heading.line}: id {heading.id!r} already stands on line {seen[heading.id]}")
        seen.setdefault(heading.id, heading.line)
    for fence in page.fences:
        problems.extend(f"line {fence.line}: {why}" for why in _fence_problems(fence))
    for line, path in _stray_includes(page):
        problems.append(f"line {line}: {path} may only be included inside a shell fence")
    return problems


def _fence_problems(fence: Fence) -> Iterator[str]:
    if fence.language in CUSTOM and not _OPTIONS.match(fence.header[len(fence.language) :]):
        yield f'write {fence.language} options as key="value" separated by spaces, saw {fence.header!r}'
    if fence.language in {"text", ""} and re.search(r"^\s*\$ ", fence.body, re.MULTILINE):
        yield "a prompt ($ ...) shows a command: put the command into docs/commands, and only its output here"
    if fence.language in SHELL and not fence.include:
        yield (
            "a command in a page must be one section of docs/commands "
            f'(--8<-- "{COMMANDS_DIR}/FILE.sh:SECTION"); show output in a text fence'
        )


def uses_of_blocks(markdown: str) -> set[str]:
    """The ids of the blocks that a page embeds, as cards or as single values."""
    ids = {fence.options.get("id", "") for fence in read(markdown).fences if fence.language == "block"}
    return ids | {match[1] for match in _VALUE.finditer(markdown)} - {""}


def short_title(markdown: str) -> str:
    """The number of a numbered page (5.2, B.1), else its whole title."""
    title = next((h.title for h in read(markdown).headings if h.level == 1), "")
    number = re.match(r"(?:[A-Z]\.)?\d+(?:\.\d+)*(?=\s)", title)
    return number[0] if number else title


def _stray_includes(page: PageText) -> Iterator[tuple[int, str]]:
    for part in page.parts:
        for offset, line in enumerate(part.prose.split("\n")):
            match = _INCLUDE.match(line)
            if match and match["path"].startswith(COMMANDS_DIR):
                yield part.heading.line + offset, match["path"]
    for fence in page.fences:
        if fence.language not in SHELL:
            for line in fence.body.split("\n"):
                match = _INCLUDE.match(line)
                if match and match["path"].startswith(COMMANDS_DIR):
                    yield fence.line, match["path"]


def title_admonitions(markdown: str, language: Language) -> str:
    """Give each untitled `!!! kind` or `??? kind` its title in the page's language."""

    def titled(match: re.Match[str]) -> str:
        title = admonition_title(language, match[2])
        return f'{match[1]}{match[2]} "{title}"' if title else match[0]

    return _UNTITLED.sub(titled, markdown)


def unlink_planned(markdown: str, uri: str, planned: frozenset[str], language: Language) -> str:
    """Leave only the words of a link whose target is planned in the navigation and not written yet."""

    def judged(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(uri), match[2]))
        if target not in planned:
            return match[0]
        return f'<span class="nl-planned" title="{escape(text(language, "page.planned"))}">{match[1]}</span>'

    return _LINK.sub(judged, markdown)


def mark_commands(markdown: str, sections: Sequence[Section], language: Language) -> str:
    """Give each command fence the tier of its section, so that the page can say where it runs."""
    known = {section.ref: section for section in sections}
    lines = markdown.split("\n")
    for fence in read(markdown).fences:
        section = known.get(fence.include) if fence.language in SHELL else None
        if section is None:
            continue
        label = text(language, f"tier.{section.tier}")
        reason = section.reasons[language is Language.EN]
        label = escape(f"{label} · {reason}" if reason else label)
        line = lines[fence.line - 1]
        mark = line[len(fence.indent) :].split(fence.header, 1)[0].strip()
        attributes = f'.bash .nl-cmd data-tier="{section.tier}" data-label="{label}" data-section="{section.ref}"'
        lines[fence.line - 1] = f"{fence.indent}{mark} {{{attributes}}}"
    return "\n".join(lines)
