"""A page of the manual as Markdown that reads well in a file of its own: commands written out, results named.

The page's own syntax (docs/AUTHORING.md) is resolved from the same sources as on the site: command sections, result
blocks, links. What a file cannot show (a figure, an excerpt) becomes a pointer to the page.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nanolab.manual import cards, commands
from nanolab.manual.blocks import BlockStore, Missing, Recorded
from nanolab.manual.pages import Fence, read
from nanolab.manual.texts import Language, text

__all__ = ["Plain", "state"]

_BOXED = re.compile(r'^(?:!!!|\?\?\?\+?)\s+[\w-]+(?:\s+"(?P<title>[^"]*)")?\s*$')
_TAB = re.compile(r'^===!?\s+"(?P<title>[^"]*)"\s*$')
_HEADING = re.compile(r"^(#{1,6})[ \t]+(.*?)[ \t]*(?:\{[^{}]*\})?[ \t]*$")
_VALUE = re.compile(r"`#!value\s+([^\s`|]+)\s+([^\s`|]+)(?:\|([^`]*))?`")
_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\(([^()\s#]*\.(?:md|ipynb))?(#[^()\s]*)?\)")
_SHELL = ("bash", "sh", "shell")


def state(block: Recorded | Missing, language: Language) -> str:
    """One line about a block: verdict, kind of evidence, device and date, or that it waits."""
    if isinstance(block, Missing):
        return f"PENDING · {text(language, 'verdict.PENDING')} · {text(language, f'tier.{block.section.tier}')}"
    kind = text(language, f"evidence.{block.data['evidence']}")
    parts = [block.verdict, kind, cards.device_name(block.data), block.date]
    if (block.data.get("model") or {}).get("synthetic"):
        parts.insert(2, text(language, "card.synthetic"))
    if block.stale:
        parts.append(text(language, "card.stale"))
    return " · ".join(part for part in parts if part)


@dataclass(frozen=True)
class Plain:
    """Renders one page. `link` turns (page without suffix, fragment) into an address in the file's surroundings, or
    into nothing for a page that is planned and not written; of such a link only the words stay."""

    language: Language
    page: str  # name without suffix, for links and pointers
    sections: Sequence[commands.Section]
    store: BlockStore
    link: Callable[[str, str], str]
    deeper: int = 1  # how many levels the headings move down

    def render(self, markdown: str) -> str:
        """The page's text, without its front matter and its ids."""
        body = re.sub(r"\A---\n.*?\n---\n", "", markdown, count=1, flags=re.DOTALL)
        lines = "\n".join(self.lines(body.split("\n")))
        return re.sub(r"\n{3,}", "\n\n", lines).strip() + "\n"

    def lines(self, lines: Sequence[str]) -> Iterator[str]:
        number = 0
        while number < len(lines):
            line = lines[number]
            box, tab = _BOXED.match(line), _TAB.match(line)
            if line.startswith(("```", "~~~")):
                end = self.end_of_fence(lines, number)
                fence = read("\n".join(lines[number:end])).fences[0]
                yield from self.fence(fence, lines[number:end])
                number = end
            elif box or tab:
                end = self.end_of_box(lines, number + 1)
                inside = [part[4:] for part in lines[number + 1 : end]]
                yield from self.boxed((box or tab)["title"], inside, quoted=bool(box))  # type: ignore[index]
                number = end
            else:
                yield self.line(line)
                number += 1

    @staticmethod
    def end_of_fence(lines: Sequence[str], start: int) -> int:
        mark = lines[start][: len(lines[start]) - len(lines[start].lstrip("`~"))]
        for number in range(start + 1, len(lines)):
            if lines[number].startswith(mark):
                return number + 1
        return len(lines)

    @staticmethod
    def end_of_box(lines: Sequence[str], start: int) -> int:
        end = start
        for number in range(start, len(lines)):
            if lines[number].startswith("    "):
                end = number + 1
            elif lines[number].strip():
                break
        return end

    def boxed(self, title: str | None, inside: Sequence[str], *, quoted: bool) -> Iterator[str]:
        content = "\n".join(self.lines(inside)).strip("\n").split("\n")
        head = [f"**{title}**", ""] if title else []
        if quoted:
            yield from (f"> {line}".rstrip() for line in [*head, *content])
        else:
            yield from [*head, *content]
        yield ""

    def line(self, line: str) -> str:
        heading = _HEADING.match(line)
        if heading:
            line = "#" * min(6, len(heading[1]) + self.deeper) + " " + heading[2]
        return _LINK.sub(self.linked, _VALUE.sub(self.value, line))

    def value(self, match: re.Match[str]) -> str:
        block = self.store.get(match[1])
        if isinstance(block, Missing):
            return "`PENDING`"
        shown = block.value(match[2])
        return f"`{format(shown, match[3]) if match[3] else shown}`"

    def linked(self, match: re.Match[str]) -> str:
        target = re.sub(r"\.(?:md|ipynb)$", "", match[2] or "")
        page = posixpath.normpath(posixpath.join(posixpath.dirname(self.page), target)) if target else self.page
        address = self.link(page, (match[3] or "")[1:])
        return f"[{match[1]}]({address})" if address else match[1]

    def fence(self, fence: Fence, raw: Sequence[str]) -> Iterator[str]:
        if fence.language in _SHELL and fence.include:
            yield "```bash"
            yield commands.find(self.sections, fence.include).body.rstrip("\n")
            yield "```"
        elif fence.language == "block":
            block_id = fence.options["id"]
            yield f"- `{block_id}`: {state(self.store.get(block_id), self.language)}"
        elif fence.language in ("source", "figure", "map", "program", "evidence-index"):
            words = {Language.ZH: "见手册页面", Language.EN: "see the page"}[self.language]
            yield f"[{words}]({self.link(self.page, '')})"
        else:
            yield from raw
