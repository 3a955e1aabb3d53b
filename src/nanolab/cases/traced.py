"""The three cases of lab 03: requests, when they arrive, and nothing about what must be seen (nanolab.analyze)."""

from __future__ import annotations

from dataclasses import dataclass

from . import walk


@dataclass(frozen=True)
class TracedRequest:
    """One request; `after` names the request that must have finished before this one is added."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    after: str | None = None


def _ids(count: int, start: int, step: int) -> tuple[int, ...]:
    """Ids of ordinary text in every tokenizer used (below 256), varied enough that no two requests share a page."""
    return tuple(32 + (start + step * i) % 220 for i in range(count))


SHARED_PREFIX = _ids(512, 3, 7)

TRACED: dict[str, tuple[TracedRequest, ...]] = {
    "lifecycle": (TracedRequest("A", _ids(64, 0, 3), 2), TracedRequest("B", _ids(96, 100, 5), 3)),
    "chunk": tuple(
        TracedRequest(name, prompt, limit)
        for name, prompt, limit in zip("AB", walk.CASES["D"].prompts, walk.CASES["D"].max_tokens, strict=True)
    ),
    "prefix": (
        TracedRequest("A", SHARED_PREFIX + _ids(108, 50, 11), 2),
        TracedRequest("B", SHARED_PREFIX + _ids(108, 90, 13), 2, after="A"),
    ),
}

TITLES = {
    "lifecycle": ("Two requests from arrival to reclaim", "两个请求从到达到回收"),
    "chunk": ("A prompt in two chunks", "分两块预填充的提示"),
    "prefix": ("The second request finds its prefix in the cache", "第二个请求命中前缀缓存"),
}
