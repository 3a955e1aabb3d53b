"""Folding a built page's styles, fonts, pictures and scripts into text that needs no other file."""

from __future__ import annotations

import base64
import mimetypes
import re
from pathlib import Path

from nanolab.errors import LabError

__all__ = ["data_uri", "notebook_style", "script", "style"]

# A quoted address may hold anything, parentheses too: the theme keeps whole drawings in them.
_URL = re.compile(r"""url\(\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^)"'\s]*))\s*\)""")
# One alternative in a font's list of sources.
_SOURCE = re.compile(r"""\s*,?\s*url\((?P<file>[^)"']+\.(?:woff2?|ttf))\)\s*format\("?'?\w+'?"?\)""")
# The selector of a rule: what stands before a brace, after another rule or at the beginning.
_RULE = re.compile(r"(?:(?<=[{}])|\A)([^{}@;\"']+)\{")
_KEYFRAME = re.compile(r"(?:from|to|[\d.]+%|[\s,])+")
_TYPES = {".woff2": "font/woff2", ".woff": "font/woff", ".ttf": "font/ttf", ".svg": "image/svg+xml"}


def data_uri(path: Path) -> str:
    """The file as a data: address."""
    kind = _TYPES.get(path.suffix.lower()) or mimetypes.guess_type(path.name)[0]
    if not path.is_file() or kind is None:
        raise LabError(f"{path.name} cannot be put inside the manual: " + ("unknown type" if kind else "no such file"))
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def style(text: str, folder: Path) -> str:
    """A stylesheet's text with every address inside it. Font files that are not shipped are dropped from their list."""

    def source(match: re.Match[str]) -> str:
        return match[0] if (folder / match["file"]).is_file() else ""

    def inside(match: re.Match[str]) -> str:
        address = match["double"] or match["single"] or match["bare"] or ""
        if not address or address.startswith(("data:", "#")):
            return match[0]
        return f'url("{data_uri(folder / address.partition("?")[0].partition("#")[0])}")'

    text = re.sub(r'^\s*@charset "[^"]*";', "", text)
    folded = _URL.sub(inside, _SOURCE.sub(source, text))
    if "@import" in folded:
        raise LabError("a stylesheet of the manual uses @import, which the single file cannot hold.")
    return re.sub(r"/\*# sourceMappingURL=[^*]*\*/", "", folded).replace("</style", r"<\/style")


def notebook_style(text: str) -> str:
    """A notebook's stylesheet, kept to notebooks: a rule for every <pre> or <table> must not reach the other pages.

    `:where` adds no weight, so the rules of one notebook still win over each other as before.
    """

    def kept(match: re.Match[str]) -> str:
        selector = match[1].strip()
        if "jupyter-wrapper" in selector or _KEYFRAME.fullmatch(selector):
            return match[0]
        return f":where(.jupyter-wrapper) :is({selector}){{"

    return _RULE.sub(kept, text)


def script(text: str) -> str:
    """A script's text as it may stand inside a page."""
    text = re.sub(r"^//# sourceMappingURL=.*$", "", text, flags=re.MULTILINE)
    return text.replace("</script", r"<\/script").replace("<!--", r"<\!--")
