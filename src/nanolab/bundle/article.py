"""One built page as a part of the single file: its article, with every id and address made unique.

Text between tags is passed through byte for byte, so the single file says exactly what the site says. Only these
change: ids and what refers to them get the page's prefix, links to other pages become links inside the file, pictures
become data: addresses, and a style or script that an earlier page brought is not repeated.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

from nanolab.bundle import fold
from nanolab.errors import LabError

__all__ = ["Joined", "inner", "prefix_of", "text_of"]

_OPENING = re.compile(r'<article class="md-content__inner[^>]*>')
_ATTRIBUTE = re.compile(r"""(?<=[\s"'])([^\s"'<>/=]+)(\s*=\s*)("[^"]*"|'[^']*'|[^\s"'=<>`]+)""")
_REFERENCES = ("for", "aria-labelledby", "aria-describedby", "aria-controls", "list", "form")
_EXTERNAL = re.compile(r"(?i)(?:https?:|mailto:|data:|javascript:)")
_FRAGMENT_URL = re.compile(r"url\(#([^)]+)\)")


def inner(html: str, name: str) -> str:
    """The article of a built page."""
    opening = _OPENING.search(html)
    end = html.rfind("</article>")
    if opening is None or end < opening.end():
        raise LabError(f"site/{name} has no article; the theme's page has changed.")
    return html[opening.end() : end].strip() + "\n"


def prefix_of(name: str) -> str:
    """The anchor of a page inside the single file: `ch5/5-1-setup.html` is `zh-ch5-5-1-setup`."""
    language, path = ("en", name.removeprefix("en/")) if name.startswith("en/") else ("zh", name)
    return f"{language}-{path.removesuffix('.html').replace('/', '-')}"


@dataclass
class Joined:
    """What all pages of the file share: which pages there are, where the site lies, and what has been brought."""

    site: Path
    pages: Mapping[str, str]  # page -> its anchor
    seen: set[str] = field(default_factory=set)

    def part(self, name: str) -> str:
        """The article of page `name`, ready to stand in the file."""
        html = inner((self.site / name).read_text(encoding="utf-8"), name)
        rewriter = _Rewriter(self, name)
        rewriter.feed(html)
        rewriter.close()
        return "".join(rewriter.out)


class _Rewriter(HTMLParser):
    """Passes a fragment through and changes attributes on the way."""

    def __init__(self, joined: Joined, name: str) -> None:
        super().__init__(convert_charrefs=False)
        self.joined, self.name = joined, name
        self.prefix = joined.pages[name]
        self.out: list[str] = []
        self.held: list[str] | None = None  # the style or script being read

    # -- tags ------------------------------------------------------------------------------------------------------

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raw = self.get_starttag_text() or ""
        if tag in ("style", "script"):
            self.held = [raw]
            return
        self.out.append(_ATTRIBUTE.sub(lambda m: self.attribute(tag, m), raw))

    handle_startendtag = handle_starttag

    def handle_endtag(self, tag: str) -> None:
        if self.held is None:
            self.out.append(f"</{tag}>")
            return
        opening, *body = self.held
        self.held = None
        self.out.append(self.once(tag, opening, "".join(body)))

    def once(self, tag: str, opening: str, body: str) -> str:
        """A style or script, the first time only; nothing for what needs another file or configures nothing."""
        if not body.strip() or "x-mathjax-config" in opening or body in self.joined.seen:
            return ""
        if re.search(r"\ssrc\s*=", opening):
            raise LabError(f"site/{self.name} loads a script inside its article: {opening}")
        self.joined.seen.add(body)
        if tag == "script":
            return f"{opening}{fold.script(body)}</script>"
        return f"<style>{fold.notebook_style(fold.style(body, (self.joined.site / self.name).parent))}</style>"

    # -- attributes --------------------------------------------------------------------------------------------------

    def attribute(self, tag: str, match: re.Match[str]) -> str:
        name, equals, quoted = match[1].lower(), match[2], match[3]
        value = unescape(quoted.strip("\"'") if quoted[:1] in "\"'" else quoted)
        changed = self.changed(tag, name, value)
        return match[0] if changed == value else f'{match[1]}{equals.strip()}"{escape(changed)}"'

    def changed(self, tag: str, name: str, value: str) -> str:
        if name == "id" or (name == "name" and tag == "input"):
            return self.own(value) if value else value
        if name in _REFERENCES:
            return " ".join(self.own(part) for part in value.split())
        if name in ("href", "xlink:href"):
            return self.link(value)
        if name in ("src", "poster"):
            return value if value.startswith("data:") else fold.data_uri(self.file(value))
        if name == "srcset":
            raise LabError(f"site/{self.name}: srcset={value!r} cannot be put inside one file; give one src.")
        return _FRAGMENT_URL.sub(lambda m: f"url(#{self.own(m[1])})", value)

    def own(self, identifier: str) -> str:
        return f"{self.prefix}--{identifier}"

    def link(self, value: str) -> str:
        if _EXTERNAL.match(value):
            return value
        path, _, fragment = value.partition("#")
        target = self.resolve(path) if path else self.name
        if target not in self.joined.pages:
            raise LabError(f"site/{self.name} links to {value!r}, which is no page of the manual.")
        anchor = self.joined.pages[target]
        return f"#{anchor}--{fragment}" if fragment else f"#{anchor}"

    def file(self, value: str) -> Path:
        if _EXTERNAL.match(value):
            raise LabError(f"site/{self.name} shows {value!r} from outside; the manual must hold it.")
        return self.joined.site / self.resolve(value)

    def resolve(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.name), path))

    # -- everything else, as it is -------------------------------------------------------------------------------------

    def handle_data(self, data: str) -> None:
        (self.out if self.held is None else self.held).append(data)

    def handle_entityref(self, name: str) -> None:
        self.out.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.out.append(f"&#{name};")

    def handle_comment(self, data: str) -> None:
        """A comment is for the site's makers; the single file leaves it out."""


class _Text(HTMLParser):
    """Collects what is written outside styles and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.silent += tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.words.append(data)


def text_of(html: str) -> str:
    """What a reader reads: the text outside styles and scripts, with white space run together."""
    parser = _Text()
    parser.feed(html)
    parser.close()
    return " ".join("".join(parser.words).split())
