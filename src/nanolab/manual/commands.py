"""The commands of the manual, each written once in `docs/commands/*.sh`.

A file holds named sections. Comment lines `# key: value` directly above the start marker are the section's header
(the keys are in `HEADER_KEYS` and in docs/commands/README.md); pages embed the body, never the header:

    # tier: cpu
    # block: quick-A
    # --8<-- [start:quick-a]
    python scripts/e2e/quick_walk.py --case A --out runs/quick-A.json
    # --8<-- [end:quick-a]

Parsing is strict: an unknown key, a section without a tier, or a command outside a section is an error that names
the file and the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from textwrap import dedent

from nanolab.manual.errors import ManualError

COMMANDS_DIR = "docs/commands"
HEADER_KEYS = ("tier", "expect", "needs", "block", "timeout", "prints", "background", "with")
DEFAULT_TIMEOUT_S = 300

_MARKER = re.compile(r"^\s*#\s*-+8<-+\s*\[(start|end):\s*([a-z0-9][a-z0-9._-]*)\]\s*$")
_MARKER_LIKE = re.compile(r"-8<-")
_HEADER = re.compile(r"^#\s*([a-z]+):\s*(.*?)\s*$")


class Tier(StrEnum):
    """Where a section can run."""

    CPU = "cpu"  # executed by CI in a scratch copy
    GPU = "gpu"  # executed by the GPU evidence run
    DOC = "doc"  # only shown: needs the reader's host, network or choice; the reason says which


@dataclass(frozen=True)
class Section:
    """One named piece of shell with its header."""

    file: str  # stem of the file in docs/commands
    name: str
    line: int  # of the start marker, counted from 1
    body: str
    tier: Tier
    reason: str = ""  # required for gpu and doc: "ZH | EN", or one text that is not shown to readers
    expect: int = 0  # exit code that means success
    needs: tuple[str, ...] = ()  # "no-model", or references FILE:SECTION that must have run before
    blocks: tuple[str, ...] = ()  # ids (or patterns with *) of the result blocks this section makes
    timeout_s: int = DEFAULT_TIMEOUT_S
    prints: tuple[str, ...] = ()  # text that stdout must contain
    background: str = ""  # URL that answers once this section, a server, is ready
    servers: tuple[str, ...] = ()  # references of background sections to keep running meanwhile

    @property
    def ref(self) -> str:
        return f"{self.file}:{self.name}"

    @property
    def reasons(self) -> tuple[str, str]:
        """The reason in Chinese and in English; both empty when it was not written for readers."""
        zh, bar, en = self.reason.partition("|")
        return (zh.strip(), en.strip()) if bar else ("", "")


@dataclass
class _Header:
    """Header lines seen so far, with the place of the first one for messages."""

    values: dict[str, list[str]] = field(default_factory=dict)

    def add(self, key: str, value: str) -> None:
        self.values.setdefault(key, []).append(value)

    def one(self, key: str, default: str) -> str:
        return self.values.get(key, [default])[-1]

    def many(self, key: str) -> tuple[str, ...]:
        return tuple(part.strip() for value in self.values.get(key, []) for part in value.split(",") if part.strip())


def load(root: Path) -> list[Section]:
    """Every section of every file, files by name and sections in their order."""
    sections = [s for path in sorted((root / COMMANDS_DIR).glob("*.sh")) for s in parse(path)]
    _check_references(sections)
    return sections


def parse(path: Path) -> list[Section]:
    """The sections of one file."""
    return list(_Parser(path).sections())


def find(sections: Iterable[Section], ref: str) -> Section:
    """The section called FILE:SECTION."""
    for section in sections:
        if section.ref == ref:
            return section
    raise ManualError(f"no command section {ref!r} in {COMMANDS_DIR}; `commands.py list` shows them all")


def sections_for_block(sections: Iterable[Section], block_id: str) -> list[Section]:
    """The sections whose header says that they make this block; a pattern such as gpu-* counts."""
    return [s for s in sections if any(fnmatchcase(block_id, pattern) for pattern in s.blocks)]


class _Parser:
    """Reads one file line by line; `number` is always the line being read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self.seen: set[str] = set()

    def fail(self, why: str) -> ManualError:
        return ManualError(f"{COMMANDS_DIR}/{self.path.name}:{self.number}: {why}")

    def sections(self) -> Iterator[Section]:
        header, start, start_line = _Header(), "", 0
        body: list[str] = []
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            self.number = number
            marker = _MARKER.match(line)
            if marker is None and _MARKER_LIKE.search(line):
                raise self.fail(f"not a section marker: {line.strip()!r}; names use a-z, 0-9, '.', '_' and '-'")
            if marker and marker[1] == "start":
                if start:
                    raise self.fail(f"section {marker[2]!r} starts inside {start!r}")
                start, start_line, body = marker[2], self.number, []
            elif marker:
                if marker[2] != start:
                    raise self.fail(f"[end:{marker[2]}] closes nothing; the open section is {start or 'none'!r}")
                yield self.section(start, start_line, body, header)
                header, start = _Header(), ""
            elif start:
                body.append(line)
            else:
                header = self.outside(line, header)
        if start:
            raise self.fail(f"section {start!r} is never closed")

    def outside(self, line: str, header: _Header) -> _Header:
        """A line between sections: a header line, a comment or nothing; a blank line drops a header."""
        if not line.strip():
            if header.values:
                raise self.fail("a header must stand directly above its start marker")
            return header
        if not line.startswith("#"):
            raise self.fail(f"a command outside a section is never run: {line.strip()!r}")
        match = _HEADER.match(line)
        if match is None or (match[1] not in HEADER_KEYS and not header.values):
            return header  # prose for the reader of the file
        if match[1] not in HEADER_KEYS:
            raise self.fail(f"unknown header key {match[1]!r}; known: {', '.join(HEADER_KEYS)}")
        header.add(match[1], match[2])
        return header

    def section(self, name: str, line: int, body: list[str], header: _Header) -> Section:
        if name in self.seen:
            raise self.fail(f"section {name!r} is defined twice")
        self.seen.add(name)
        tier_text, _, reason = header.one("tier", "").partition("reason=")
        try:
            tier = Tier(tier_text.strip())
        except ValueError:
            raise self.fail(
                f"section {name!r} needs a header line '# tier: cpu|gpu|doc', saw {tier_text.strip()!r}"
            ) from None
        if tier is not Tier.CPU and not reason.strip():
            raise self.fail(f"section {name!r} has tier {tier} and must say why: '# tier: {tier} reason=...'")
        text = dedent("\n".join(body)).strip("\n")
        if not text.strip():
            raise self.fail(f"section {name!r} is empty")
        return Section(
            file=self.path.stem,
            name=name,
            line=line,
            body=text + "\n",
            tier=tier,
            reason=reason.strip(),
            expect=self.integer(header, "expect", 0),
            needs=tuple(self.qualify(n) for n in header.many("needs")),
            blocks=header.many("block"),
            timeout_s=self.integer(header, "timeout", DEFAULT_TIMEOUT_S),
            prints=tuple(header.values.get("prints", ())),
            background=header.one("background", ""),
            servers=tuple(self.qualify(n) for n in header.many("with")),
        )

    def qualify(self, ref: str) -> str:
        """A bare section name means one of the same file."""
        return ref if ref == "no-model" or ":" in ref else f"{self.path.stem}:{ref}"

    def integer(self, header: _Header, key: str, default: int) -> int:
        value = header.one(key, str(default))
        if not value.isdecimal():
            raise self.fail(f"'# {key}:' takes a whole number, saw {value!r}")
        return int(value)


def _check_references(sections: list[Section]) -> None:
    known = {s.ref: s for s in sections}
    for section in sections:
        for ref in (*section.needs, *section.servers):
            if ref != "no-model" and ref not in known:
                raise ManualError(f"section {section.ref} refers to {ref}, which does not exist")
        for ref in section.servers:
            if not known[ref].background:
                raise ManualError(f"section {section.ref} keeps {ref} running, but that one has no '# background:'")
