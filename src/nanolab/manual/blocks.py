"""Result blocks as the pages see them: `docs/evidence/ID.json`, its staleness, and what would make a missing one.

A block is validated each time it is read; an invalid one raises, so that no page shows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanolab import evidence
from nanolab.manual import commands
from nanolab.manual.errors import ManualError

EVIDENCE_DIR = "docs/evidence"

_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
_MISSING = object()


@dataclass(frozen=True)
class Recorded:
    """A block that exists."""

    id: str
    data: Mapping[str, Any]
    stale: bool

    @property
    def verdict(self) -> str:
        return str(self.data["check"])

    @property
    def date(self) -> str:
        return str(self.data["started_at"])[:10]

    def value(self, path: str) -> Any:
        """The value at a dotted path, looked up in `result` first and then from the block's root."""
        for start in (self.data.get("result", {}), self.data):
            value = _walk(start, path)
            if value is not _MISSING:
                return value
        raise ManualError(f"block {self.id!r} has no value {path!r}")


@dataclass(frozen=True)
class Missing:
    """A block that nobody has recorded yet, and the sections that would make it, the one to show first."""

    id: str
    sections: tuple[commands.Section, ...]

    @property
    def section(self) -> commands.Section:
        return self.sections[0]

    def seen_from(self, file: str) -> Missing:
        """The same, with the sections of this commands file first: a page shows its own command."""
        return Missing(self.id, tuple(sorted(self.sections, key=lambda section: section.file != file)))

    @property
    def verdict(self) -> str:
        return "PENDING"


@dataclass
class BlockStore:
    """Reads each block once per build."""

    root: Path
    sections: Sequence[commands.Section]
    _cache: dict[str, Recorded | Missing] = field(default_factory=dict)

    def get(self, block_id: str) -> Recorded | Missing:
        if block_id not in self._cache:
            self._cache[block_id] = self._read(block_id)
        return self._cache[block_id]

    def recorded(self, block_id: str) -> Recorded | None:
        block = self.get(block_id)
        return block if isinstance(block, Recorded) else None

    def all(self) -> list[Recorded | Missing]:
        """Every block on disk, and every one that a command section announces, by id."""
        ids = {path.stem for path in (self.root / EVIDENCE_DIR).glob("*.json")}
        ids |= {i for section in self.sections for i in section.blocks if "*" not in i}
        return [self.get(block_id) for block_id in sorted(ids)]

    def _read(self, block_id: str) -> Recorded | Missing:
        if not _ID.match(block_id):
            raise ManualError(f"{block_id!r} is not a block id")
        path = self.root / EVIDENCE_DIR / f"{block_id}.json"
        if not path.is_file():
            makers = commands.sections_for_block(self.sections, block_id)
            if not makers:
                raise ManualError(
                    f"no block {block_id!r} in {EVIDENCE_DIR}, and no section of {commands.COMMANDS_DIR} says "
                    f"'# block: {block_id}'"
                )
            return Missing(block_id, tuple(makers))
        try:
            block = evidence.load(path)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ManualError(f"{EVIDENCE_DIR}/{path.name} is not JSON: {error}") from error
        if block["id"] != block_id:
            raise ManualError(f"{EVIDENCE_DIR}/{path.name} holds the block {block['id']!r}")
        return Recorded(block_id, block, evidence.is_stale(block, self.root))


def _walk(value: Any, path: str) -> Any:
    """`a.b.0.c` through mappings and lists; a key that itself holds dots is tried whole first."""
    if isinstance(value, Mapping) and path in value:
        return value[path]
    head, _, rest = path.partition(".")
    if isinstance(value, Mapping) and head in value:
        inner = value[head]
    elif isinstance(value, list) and head.lstrip("-").isdecimal() and -len(value) <= int(head) < len(value):
        inner = value[int(head)]
    else:
        return _MISSING
    return _walk(inner, rest) if rest else inner
