"""The whole manual in one file: both languages, formulas, figures and result cards inside, no request to anywhere.

It is joined from the pages of the built site, in the order of the navigation, so it says what the site says. Each page
is a <section> whose id is its anchor; the other language's section has the same id but for its first two letters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser
from pathlib import Path

from nanolab.bundle import article, fold
from nanolab.bundle.site import CONFIGS
from nanolab.errors import LabError

__all__ = ["NAME", "Entry", "build", "navigation", "problems", "text_differences"]

NAME = "实验手册.html"
ASSETS = Path(__file__).parent / "assets"

_STYLESHEET = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
_HEAD_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_DEFERRED = re.compile(r'<script src="([^"]+)" defer></script>')
_H1 = re.compile(r"<h1\b[^>]*>(.*?)</h1>", re.DOTALL)
_SECTION = re.compile(r'<section class="book-page" id="([^"]+)">\n(.*?)\n</section><!-- book-page -->', re.DOTALL)
_REMOTE = re.compile(r"(?i)^(?:https?:)?//")


@dataclass(frozen=True)
class Entry:
    """A line of the contents: a page, or a group when `page` is empty."""

    title: str
    level: int
    page: str = ""


def navigation(root: Path, site: Path) -> dict[str, list[Entry]]:
    """The navigation of each language, restricted to pages that were built."""
    from mkdocs.utils.yaml import yaml_load  # not among a reader's requirements, who only checks sums

    found = {}
    for language, config in CONFIGS.items():
        tree = yaml_load((root / config).read_text(encoding="utf-8"))["nav"]
        folder = "" if language == "zh" else f"{language}/"
        found[language] = list(_entries(tree, 1, folder, site))
    return found


def _entries(tree: list[object], level: int, folder: str, site: Path) -> Iterator[Entry]:
    for item in tree:
        title, target = next(iter(item.items())) if isinstance(item, dict) else ("", item)
        if isinstance(target, list):
            inner = list(_entries(target, level + 1, folder, site))
            if any(entry.page for entry in inner):
                yield Entry(title, level)
                yield from inner
            continue
        page = folder + re.sub(r"\.(?:md|ipynb)$", ".html", str(target))
        if (site / page).is_file():
            yield Entry(title or _title(site, page), level, page)


def _title(site: Path, page: str) -> str:
    html = article.inner((site / page).read_text(encoding="utf-8"), page)
    heading = _H1.search(html)
    return article.text_of(heading[1]).rstrip("¶ ") if heading else page


def build(root: Path, site: Path) -> str:
    """The file's text, from the navigation of `root` and the pages of `site`; a link that leads nowhere raises."""
    contents = navigation(root, site)
    pages = {e.page: article.prefix_of(e.page) for entries in contents.values() for e in entries if e.page}
    joined = article.Joined(site, pages)
    bodies = "\n".join(_language(joined, language, entries) for language, entries in contents.items())
    template = (ASSETS / "book.html").read_text(encoding="utf-8")
    icon = fold.data_uri(site / "assets" / "manual" / "favicon.svg")
    parts = {"icon": icon, "styles": _styles(site), "bodies": bodies, "scripts": _scripts(site)}
    html = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
    found = problems(html)
    if found:
        raise LabError(f"{NAME} is not whole:\n" + "\n".join(found[:20]))
    return html


def _language(joined: article.Joined, language: str, entries: list[Entry]) -> str:
    rows = "".join(_row(joined, entry) for entry in entries)
    label = {"zh": "目录", "en": "Contents"}[language]
    parts = "\n".join(_section(joined, entry.page) for entry in entries if entry.page)
    return (
        f'<div class="book-language" data-language="{language}" lang="{language}">\n'
        f'<nav class="book-contents" aria-label="{label}"><ol>{rows}</ol></nav>\n'
        f'<main class="md-content">\n{parts}\n</main>\n</div>'
    )


def _row(joined: article.Joined, entry: Entry) -> str:
    title = escape(entry.title, quote=False)
    inside = f'<a href="#{joined.pages[entry.page]}">{title}</a>' if entry.page else f"<span>{title}</span>"
    return f'<li class="book-level-{entry.level}">{inside}</li>'


def _section(joined: article.Joined, page: str) -> str:
    body = f'<article class="md-content__inner md-typeset">\n{joined.part(page)}</article>'
    return f'<section class="book-page" id="{joined.pages[page]}">\n{body}\n</section><!-- book-page -->'


def _styles(site: Path) -> str:
    """The theme's and the manual's styles as the pages use them, then the book's own."""
    home = (site / "index.html").read_text(encoding="utf-8")
    head = home[: home.index("</head>")]
    sheets = [site / address for address in _STYLESHEET.findall(head)]
    texts = [fold.style(path.read_text(encoding="utf-8"), path.parent) for path in sheets]
    texts += [fold.style(text, site) for text in _HEAD_STYLE.findall(head)]
    texts.append((ASSETS / "book.css").read_text(encoding="utf-8"))
    return "\n".join(f"<style>{text}</style>" for text in texts)


def _scripts(site: Path) -> str:
    """The manual's own scripts (formulas, the evidence index, printing) without the theme's, then the book's."""
    home = (site / "index.html").read_text(encoding="utf-8")
    paths = [site / address for address in _DEFERRED.findall(home)] + [ASSETS / "book.js"]
    texts = [fold.script(path.read_text(encoding="utf-8")) for path in paths]
    return "\n".join(f"<script>{text}</script>" for text in texts)


# ---- looking at the file -------------------------------------------------------------------------------------------


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: Counter[str] = Counter()
        self.targets: set[str] = set()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids[value] += 1
            elif name == "href" and (value or "").startswith("#"):
                self.targets.add((value or "#")[1:])
            elif name in ("src", "srcset", "poster", "data") or (name == "href" and tag == "link"):
                if not (value or "").startswith("data:"):
                    self.outside.append(f'<{tag} {name}="{value}">')
            elif name == "href" and tag == "a" and not _EXTERNAL_LINK.match(value or ""):
                self.outside.append(f'<{tag} {name}="{value}">')

    handle_startendtag = handle_starttag


_EXTERNAL_LINK = re.compile(r"(?:https?|mailto):")
_CSS_URL = re.compile(r"""url\(\s*["']?(?!data:|#)([^"')\s]{1,60})""")


def problems(html: str) -> list[str]:
    """What keeps the file from standing alone: an id twice, a link that leads nowhere, something outside it."""
    links = _Links()
    links.feed(html)
    links.close()
    found = [f"id {name!r} stands {count} times" for name, count in sorted(links.ids.items()) if count > 1]
    found += [f"a link leads to {name!r}, which is not there" for name in sorted(links.targets - set(links.ids))]
    found += [f"{tag} needs another file" for tag in links.outside]
    styles = "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    found += [f"a style needs {address!r}" for address in _CSS_URL.findall(styles)]
    return found


def text_differences(html: str, site: Path) -> list[str]:
    """Pages of the site whose text the file does not repeat word for word, and sections that are no page."""
    sections = {match[1]: article.text_of(match[2]) for match in _SECTION.finditer(html)}
    pages = {path.relative_to(site).as_posix(): path for path in site.rglob("*.html") if path.name != "404.html"}
    anchors = {article.prefix_of(name): name for name in pages}
    found = [f"section {anchor} is no page of the site" for anchor in sections if anchor not in anchors]
    for anchor, name in sorted(anchors.items()):
        text = article.text_of(article.inner(pages[name].read_text(encoding="utf-8"), name))
        if anchor not in sections:
            found.append(f"{name} is not in {NAME}")
        elif sections[anchor] != text:
            found.append(f"{name} says something else in {NAME}: {_first_difference(text, sections[anchor])}")
    return found


def _first_difference(wanted: str, seen: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(wanted, seen, strict=False)) if a != b), min(len(wanted), len(seen)))
    around = slice(max(0, at - 10), at + 20)
    return f"{wanted[around]!r} against {seen[around]!r}"
