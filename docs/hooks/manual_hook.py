"""Entry point that MkDocs loads; the work is in `nanolab.manual.site`, always taken from this tree."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from nanolab.manual.site import Site  # noqa: E402 - the path above decides which tree is imported

_site = Site(ROOT)

on_config = _site.on_config
on_files = _site.on_files
on_page_markdown = _site.on_page_markdown
on_page_content = _site.on_page_content
on_page_context = _site.on_page_context
on_post_page = _site.on_post_page
