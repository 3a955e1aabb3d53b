"""What an analysis found: facts, checks with both values, and a table for a reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    name: str
    seen: Any
    expected: Any

    @property
    def ok(self) -> bool:
        return bool(self.seen == self.expected)


@dataclass(frozen=True)
class Table:
    """Rows of a TSV; the last columns explain each row in both languages."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def tsv(self) -> str:
        lines = [self.columns, *self.rows]
        return "".join("\t".join(_cell(value) for value in line) + "\n" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return str(value).replace("\t", " ").replace("\n", " ")


@dataclass
class Findings:
    """`run` is the log's own description of what ran: engine, model, device, config."""

    run: dict[str, Any]
    checks: list[Check] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    table: Table | None = None

    def expect(self, name: str, seen: Any, expected: Any) -> None:
        """Remember a value beside the one it must have."""
        self.checks.append(Check(name, seen, expected))

    @property
    def wrong(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]

    def result(self) -> dict[str, Any]:
        checks = [{"check": c.name, "seen": c.seen, "expected": c.expected, "ok": c.ok} for c in self.checks]
        return self.facts | {"checks": checks}


def by_request(entries: Sequence[dict[str, Any]], *names: str) -> dict[str, Any]:
    """{request: value}, or {request: [values]} for several names, of a batch's entries."""
    return {e["request"]: e[names[0]] if len(names) == 1 else [e[name] for name in names] for e in entries}
