"""`Recording`: one run, from its first line to the block on disk, the verdict line and the exit code.

    with Recording("quick-A", title_en="Case A", title_zh="案例 A", out=out, sources=[cases]) as rec:
        rec.engine, rec.device = source.describe(), describe_device("cpu")
        rec.result["steps"] = 3
        rec.finish(Verdict.PASS, EvidenceType.CPU_ENGINE)

Contract: `out` is proven writable on entry, before any work. On leaving, the block is validated and moved
into place, the verdict is printed last and the process exits with its code (SystemExit, unless 0). If the
body raises, the previous file is untouched: a LabError passes through for click to show, anything else prints
its traceback and FAIL. A block never claims a higher evidence type than what ran.
"""

from __future__ import annotations

import bdb
import math
import re
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
import msgspec

from nanolab.errors import LabError
from nanolab.evidence import provenance
from nanolab.evidence.files import check_writable, format_json, write_atomic
from nanolab.evidence.schema import ID_PATTERN, SCHEMA_ID, Block, validate
from nanolab.evidence.scrub import Scrubber
from nanolab.verdicts import EvidenceType, Verdict

__all__ = ["Recording", "conclude"]


def conclude(verdict: Verdict, on_stderr: bool = False) -> None:
    """Print the verdict as the last line and exit with its code; the one place that does either."""
    click.echo(verdict.value, err=on_stderr)
    if verdict.exit_code:
        raise SystemExit(verdict.exit_code)


class Recording:
    """Collects a run's facts (module docstring); `block` is the finished block after the `with`."""

    def __init__(
        self,
        id: str,
        *,
        title_en: str,
        title_zh: str,
        out: Path | None = None,
        sources: Iterable[provenance.Source] = (),
        command: Sequence[str] | None = None,
        verdict_on_stderr: bool = False,  # for a script whose stdout is one document
    ) -> None:
        self.id = id
        self.title = {"zh": title_zh, "en": title_en}
        self.engine: dict[str, Any] | None = None
        self.model: dict[str, Any] | None = None
        self.device: dict[str, Any] | None = None  # None: this host's CPU
        self.config: dict[str, Any] = {}
        self.result: dict[str, Any] = {}
        self.volatile: list[str] = []  # keys of result that change from run to run, such as timings
        self.notes: list[str] = []
        self.block: Block | None = None
        self._out = out
        self._sources = list(sources)
        self._command = list(sys.orig_argv if command is None else command)
        self._on_stderr = verdict_on_stderr
        self._concluded: tuple[Verdict, EvidenceType] | None = None

    def __enter__(self) -> Self:
        if not re.fullmatch(ID_PATTERN, self.id):
            raise LabError(
                f"a block cannot be called {self.id!r}; letters, digits and . _ - only. "
                "Give --out another file name, for example runs/quick-A.json."
            )
        if self._out is not None:
            self._out = check_writable(self._out)
        self._started_at = datetime.now(UTC)
        self._started = time.perf_counter()
        return self

    def finish(self, verdict: Verdict, evidence: EvidenceType) -> None:
        """State the conclusion; the block is written when the `with` is left. The last call counts."""
        self._refuse_overclaim(evidence)
        self._concluded = (verdict, evidence)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, click.ClickException) or not (error is None or isinstance(error, Exception)):
            return
        if isinstance(error, bdb.BdbQuit):  # the learner left pdb with `q`: the run was not finished, nor did it fail
            click.echo("left the debugger before the run ended; nothing was recorded", err=True)
            conclude(Verdict.PENDING, self._on_stderr)
        try:
            if error is not None:
                raise error
            verdict = self._write()
        except click.ClickException:
            raise
        except Exception as failure:
            traceback.print_exception(failure)
            click.echo(Verdict.FAIL.value, err=self._on_stderr)
            raise SystemExit(Verdict.FAIL.exit_code) from failure
        conclude(verdict, self._on_stderr)

    def _refuse_overclaim(self, evidence: EvidenceType) -> None:
        device = (self.device or {}).get("kind", "cpu")
        engine = (self.engine or {}).get("kind")
        if evidence is EvidenceType.GPU and device != "cuda":
            raise ValueError(f"evidence 'gpu' needs device.kind 'cuda'; this run's device is {device!r}")
        if evidence in (EvidenceType.CPU_ENGINE, EvidenceType.CPU_SCHEDULER):
            if engine is None:
                raise ValueError(f"evidence {evidence.value!r} needs rec.engine: which engine ran?")
            if engine == "simulated":
                raise ValueError(f"a simulated engine is 'cpu-simulation', not {evidence.value!r}")

    def _write(self) -> Verdict:
        if self._concluded is None:
            raise RuntimeError("the run ended without rec.finish(verdict, evidence); nothing was recorded")
        verdict, evidence = self._concluded
        self._refuse_overclaim(evidence)  # engine and device may have changed since finish
        self.block = self._build(verdict, evidence)
        validate(self.block, f"block {self.id}")
        if self._out is not None:
            write_atomic(self._out, format_json(self.block).encode())
        return verdict

    def _build(self, verdict: Verdict, evidence: EvidenceType) -> Block:
        root = provenance.repo_root()
        scrubber = Scrubber(root)
        sources = provenance.source_hashes([*self._sources, *self._implied_sources(root)], root)
        facts = {
            "engine": self.engine,
            "model": self.model,
            "device": self.device or provenance.describe_device("cpu"),
            "versions": provenance.describe_versions(),
            "git": provenance.describe_git(sources, root),
            "sources_sha256": sources,
            "config": self.config,
            "result": self.result,
            "volatile": self.volatile,
            "notes": self.notes,
        }
        return {
            "schema": SCHEMA_ID,
            "id": self.id,
            "title": self.title,
            "check": verdict.value,
            "evidence": evidence.value,
            "command": scrubber.command(self._command),
            "started_at": self._started_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "duration_s": round(time.perf_counter() - self._started, 3),
            **{key: scrubber.clean(_plain(value)) for key, value in facts.items()},
        }

    def _implied_sources(self, root: Path) -> list[provenance.Source]:
        """The script that runs, and the bundled engine when it is the one driven."""
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        implied: list[provenance.Source] = []
        if script and Path(script).is_file():
            implied.append(Path(script).resolve())
        if (self.engine or {}).get("kind") == "bundled":
            implied.append(root / "src" / "nanoengine")
        return implied


def _plain(value: object) -> Any:
    """JSON types only: structs, enums, paths, NumPy and torch values converted, NaN spelled out."""
    return _finite(msgspec.to_builtins(value, str_keys=True, enc_hook=_convert))


def _convert(value: Any) -> object:
    for method in ("tolist", "item"):  # NumPy and torch arrays and scalars, without importing either
        if callable(getattr(value, method, None)):
            return getattr(value, method)()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a result block cannot hold {type(value).__name__}: {value!r}")


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity; a fact that is one is recorded as its name instead of being lost."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
