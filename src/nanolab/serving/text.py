"""From token ids to text while they arrive: pieces that join to the decoded whole, and stop strings.

A byte-level token may end in the middle of a character; such a tail is held back until the character is complete.
Part of a stop string is held back too, until it is clear whether the rest follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["TextOutput"]

INCOMPLETE = "\ufffd"  # what a decoder shows for the beginning of a character


class TextOutput:
    """Feed token ids, get the text that is certain. Once `stopped` is True nothing more comes out."""

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._window: list[int] = []  # tokens since the last point where text and tokens ended together
        self._window_text = 0  # characters of the window that have been passed on
        self._held = ""  # text that may be the beginning of a stop string

    def feed(self, token_ids: Sequence[int]) -> str:
        return "" if self.stopped else self._cut_at_stop(self._decode(token_ids))

    def finish(self) -> str:
        """What was held back and turned out to be plain text."""
        if self.stopped:
            return ""
        rest = self._cut_at_stop(self._tokenizer.decode(self._window, skip_special_tokens=True)[self._window_text :])
        rest, self._held = rest + ("" if self.stopped else self._held), ""
        self._window, self._window_text = [], 0
        return rest

    def _decode(self, token_ids: Sequence[int]) -> str:
        self._window += token_ids
        text: str = self._tokenizer.decode(self._window, skip_special_tokens=True)
        certain = text[:-1] if text.endswith(INCOMPLETE) else text
        piece = certain[self._window_text :]
        if certain is text:
            self._window, self._window_text = [], 0
        else:
            self._window_text = len(certain)
        return piece

    def _cut_at_stop(self, piece: str) -> str:
        if not self._stop:
            return piece
        text = self._held + piece
        found = [position for stop in self._stop if (position := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
