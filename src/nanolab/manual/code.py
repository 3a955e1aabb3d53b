"""Highlighted code in the markup that the theme styles and gives a copy button."""

from __future__ import annotations

from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]


def highlighted(code: str, language: str, first_line: int = 0) -> str:
    """`code` as HTML; with `first_line` above zero, line numbers that start there, in a column that is never copied."""
    formatter = HtmlFormatter(
        cssclass="highlight",
        wrapcode=True,
        linenos="table" if first_line else False,
        linenostart=first_line or 1,
    )
    html = str(highlight(code.rstrip("\n") + "\n", get_lexer_by_name(language, stripnl=False), formatter))
    return f'<div class="language-{language} highlight">{html}</div>' if first_line else html
