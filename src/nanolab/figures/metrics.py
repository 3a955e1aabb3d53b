"""How wide a text will be, before any browser has seen it: an estimate on the wide side, and line breaking.

The figures are laid out by these widths, and the build refuses a text that would leave its box or meet another.
"""

import unicodedata

_NARROW, _SLIM, _WIDE = set("ijl.,:;'|!()[]"), set("frt-/ "), set("mwMW")
_NO_LINE_START = set("，。；：、！？）」』》%")


def is_wide(character: str) -> bool:
    """Chinese characters and full-width punctuation take one em."""
    return unicodedata.east_asian_width(character) in "WF"


def _em(character: str) -> float:
    if is_wide(character):
        return 1.0
    if character in _NARROW:
        return 0.32
    if character in _SLIM:
        return 0.4
    if character in _WIDE:
        return 0.95
    if character.isupper():
        return 0.69
    return 0.6


def text_width(text: str, size: float, bold: bool = False, mono: bool = False) -> float:
    """Width in user units at font size `size`."""
    if mono:
        return size * sum(1.0 if is_wide(c) else 0.61 for c in text)
    return size * sum(_em(c) for c in text) * (1.12 if bold else 1.0)


def _pieces(text: str) -> list[str]:
    """Where a line may break: between Chinese characters, and after spaces."""
    pieces = [""]
    for character in text:
        breakable = pieces[-1] and (is_wide(character) or is_wide(pieces[-1][-1]) or pieces[-1][-1] == " ")
        if breakable and character not in _NO_LINE_START and character != " ":
            pieces.append("")
        pieces[-1] += character
    return pieces


def wrap(text: str, width: float, size: float, bold: bool = False) -> list[str]:
    """Break `text` into lines no wider than `width`."""
    lines = [""]
    for piece in _pieces(text):
        if lines[-1] and text_width((lines[-1] + piece).rstrip(), size, bold) > width:
            lines.append("")
        lines[-1] += piece
    return [line.strip() for line in lines]
