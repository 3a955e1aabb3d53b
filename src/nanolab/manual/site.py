"""The MkDocs events of the manual: one instance serves one build of one language.

Contract: both builds use the same file names, so a page's twin in the other language is a path; the Chinese site is the
root, the English one its folder `en/`. Nothing that this module adds fetches anything from outside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority, get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from nanolab.manual import commands, pages
from nanolab.manual.blocks import BlockStore, Recorded
from nanolab.manual.fences import Fences, PageState
from nanolab.manual.texts import Language, text

log = get_plugin_logger("manual")

SHARED_DIR = "docs/shared"
ASSETS = "assets/manual"

_SEARCH_DIALOG = '<div class="md-search" data-md-component="search" role="dialog"'
_SEARCH_BUTTON = '<label class="md-header__button md-icon" for="__search">'
_REMOTE_LOADERS = (
    # mkdocs-jupyter: a MathJax loader (0.27) or a module script importing mermaid (0.26), in every notebook page
    re.compile(
        r"<script[^>]*>(?:(?!</script>).)*https?://[^<]*(?:mermaid|mathjax)(?:(?!</script>).)*</script>", re.S | re.I
    ),
    re.compile(r"<script[^>]*src=[\"']https?://[^>]*></script>", re.I),
    re.compile(r"<link[^>]*rel=[\"']?alternate[^>]*>", re.I),
)


class Site:
    """Holds the page that is being rendered; MkDocs renders one page at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.language = Language.ZH
        self.fences: Fences | None = None
        self.planned: frozenset[str] = frozenset()

    # -- configuration -------------------------------------------------------------------------------------------

    @event_priority(100)  # before the search plugin reads its dictionary
    def on_config(self, config: MkDocsConfig) -> MkDocsConfig:
        self._anchor_paths(config)
        self.language = Language(config.extra["manual"]["language"])
        self.sections = commands.load(self.root)
        self.fences = Fences(self.root, self.language, BlockStore(self.root, self.sections))
        superfences = config.mdx_configs.setdefault("pymdownx.superfences", {})
        superfences["custom_fences"] = self.fences.custom_fences()
        config.mdx_configs.setdefault("pymdownx.inlinehilite", {})["custom_inline"] = self.fences.custom_inline()
        if config.nav is not None:
            missing: list[str] = []
            config.nav = _existing(config.nav, Path(config.docs_dir), missing)
            self.planned = frozenset(missing)
            if missing:
                log.info("%d planned pages are not written yet: %s", len(missing), " ".join(missing))
        return config

    def _anchor_paths(self, config: MkDocsConfig) -> None:
        """Paths that MkDocs leaves relative to the working directory; a build may be started from anywhere."""
        config.mdx_configs.setdefault("pymdownx.snippets", {})["base_path"] = [str(self.root)]
        for plugin, option in (("material/search", "jieba_dict_user"), ("mkdocs-jupyter", "cache_dir")):
            settings = config.plugins[plugin].config
            if settings.get(option):
                settings[option] = str(self.root / settings[option])

    def on_files(self, files: Files, config: MkDocsConfig) -> Files:
        """The assets both languages share live once and are added to each build."""
        shared = self.root / SHARED_DIR
        for path in sorted(p for p in shared.rglob("*") if p.is_file()):
            relative = path.relative_to(shared).as_posix()
            if not relative.startswith(("search/", "abbreviations/")):
                files.append(File.generated(config, f"{ASSETS}/{relative}", abs_src_path=str(path)))
        return files

    # -- one page ------------------------------------------------------------------------------------------------

    def on_page_markdown(self, markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
        assert self.fences is not None
        self.fences.page = PageState(page.file.src_uri)
        for problem in pages.lint(markdown):
            log.warning("%s: %s", page.file.src_uri, problem)
        markdown = pages.unlink_planned(markdown, page.file.src_uri, self.planned, self.language)
        markdown = pages.mark_commands(markdown, self.sections, self.language)
        return pages.title_admonitions(markdown, self.language) + self._abbreviations()

    def _abbreviations(self) -> str:
        """Glossary terms with hover text, if the glossary provides them."""
        file = self.root / SHARED_DIR / "abbreviations" / f"{self.language}.md"
        return "\n\n" + file.read_text(encoding="utf-8") if file.is_file() else ""

    def on_page_content(self, html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
        assert self.fences is not None
        blocks = self.fences.page.blocks
        line = self._verified(blocks)
        return html.replace("</h1>", f"</h1>{line}", 1) if line else html

    def _verified(self, block_ids: Iterable[str]) -> str:
        """When this page's results were last recorded, and how many still wait."""
        assert self.fences is not None
        blocks = [self.fences.store.get(i) for i in block_ids if self._readable(i)]
        if not blocks:
            return ""
        recorded = [b for b in blocks if isinstance(b, Recorded)]
        pending, stale = len(blocks) - len(recorded), sum(b.stale for b in recorded)
        if recorded:
            plural = "page.block" if len(recorded) == 1 else "page.blocks"
            parts = [
                f"{text(self.language, 'page.verified')} {max(b.date for b in recorded)}",
                text(self.language, plural, n=len(recorded)),
            ]
        else:
            parts = [text(self.language, "page.none")]
        parts += [text(self.language, key, n=n) for key, n in (("page.pending", pending), ("page.stale", stale)) if n]
        return f'<p class="nl-verified" data-search-exclude>{escape(" · ".join(parts))}</p>'

    def _readable(self, block_id: str) -> bool:
        """A block that failed to load already stopped the strict build; the page line leaves it out."""
        assert self.fences is not None
        try:
            self.fences.store.get(block_id)
        except Exception:  # reported by the fence
            return False
        return True

    def on_page_context(self, context: dict[str, Any], page: Page, config: MkDocsConfig, nav: Any) -> dict[str, Any]:
        context["nl_twin"] = self.twin_url(page.url, config)
        page.meta["nl_twin"] = context["nl_twin"]
        return context

    def twin_url(self, url: str, config: MkDocsConfig) -> str:
        """The same page in the other language, relative to this one; its start page when there is no such page."""
        twin_docs = Path(config.docs_dir).parent / self.language.other
        source = re.sub(r"\.html$", "", url) or "index"
        exists = any((twin_docs / f"{source}{suffix}").is_file() for suffix in (".md", ".ipynb"))
        target = url if exists else "index.html"
        if self.language is Language.ZH:
            return get_relative_url(f"en/{target}", url)
        return get_relative_url(target, f"en/{url}")

    @event_priority(-100)
    def on_post_page(self, output: str, page: Page, config: MkDocsConfig) -> str:
        for pattern in _REMOTE_LOADERS:
            output = pattern.sub("", output)
        twin = config.extra["manual"]["twin"]
        link = (
            f'<a class="nl-lang" href="{escape(page.meta["nl_twin"])}" hreflang="{twin["language"]}" '
            f'lang="{twin["language"]}" title="{escape(twin["title"])}">{escape(twin["label"])}</a>'
        )
        for wanted in (_SEARCH_BUTTON, _SEARCH_DIALOG):
            if wanted not in output:
                log.warning("%s: the theme's header has changed; it lacks %s", page.file.src_uri, wanted)
        named = f'{_SEARCH_DIALOG} aria-label="{text(self.language, "page.search")}"'  # the theme leaves it nameless
        output = output.replace(_SEARCH_DIALOG, named, 1)
        return output.replace(_SEARCH_BUTTON, link + _SEARCH_BUTTON, 1)


def _existing(nav: list[Any], docs: Path, missing: list[str]) -> list[Any]:
    """The navigation without pages that do not exist yet and without sections left empty by that."""
    kept: list[Any] = []
    for item in nav:
        title, target = next(iter(item.items())) if isinstance(item, dict) else (None, item)
        if isinstance(target, list):
            inner = _existing(target, docs, missing)
            if inner:
                kept.append({title: inner})
        elif (docs / target).is_file():
            kept.append(item)
        else:
            missing.append(target)
    return kept
