"""Executes the manual's command sections in a scratch copy of the tree, in order, as a reader would.

Contract: nothing outside the working directory is written; every section runs in its own bash with `-euo pipefail`,
in the copy's root, with the same Python first on PATH and the copy's `src` first on PYTHONPATH; a section's
processes are gone when it ends; its output is kept in `logs/`. The files that sections leave behind (runs/, engine/,
models/) are what connects them, as in the manual.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from nanolab.manual.commands import Section, Tier, find
from nanolab.manual.errors import ManualError

MODEL = "models/Qwen3-0.6B"
MAKE_MODEL = "scripts/e2e/make_model.py"
NOT_COPIED = (
    ".git",
    ".venv*",
    ".cache",
    "__pycache__",
    "*.egg-info",
    "runs",
    "engine",
    "models",
    "notes",
    "site",
    "dist",
)
STOP_GRACE_S = 20.0
KEPT_VARIABLES = ("LANG", "LC_ALL", "TZ", "TMPDIR", "OMP_NUM_THREADS", "SOURCE_DATE_EPOCH", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Outcome:
    """How one section ended; `problem` is empty when it did what its header says."""

    section: Section
    seconds: float
    log: Path
    problem: str = ""


@dataclass
class Scratch:
    """The copy of the tree, and what has been done in it."""

    directory: Path
    model: Path | None = None  # a real model to link instead of the teaching model
    done: set[str] = field(default_factory=set)

    @property
    def tree(self) -> Path:
        return self.directory / "tree"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def environment(self) -> dict[str, str]:
        """A reader's shell after activating the environment: no variable of the caller's lab leaks in."""
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        return kept | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.directory / "home"),
            "PYTHONPATH": str(self.tree / "src"),
            "PYTHONUNBUFFERED": "1",
            "GIT_CEILING_DIRECTORIES": str(self.directory),
            "HF_HUB_OFFLINE": "1",
        }


def prepare(root: Path, directory: Path, model: Path | None = None) -> Scratch:
    """Copy the tree (what git tracks or would track) into `directory`, which must be new or empty."""
    if directory.exists() and any(directory.iterdir()):
        raise ManualError(f"{directory} is not empty; give --workdir a new directory, the run starts from a clean copy")
    scratch = Scratch(directory, model)
    for path in (scratch.tree, scratch.logs, directory / "home"):
        path.mkdir(parents=True, exist_ok=True)
    listed = _git_files(root)
    if listed is None:
        shutil.copytree(root, scratch.tree, ignore=shutil.ignore_patterns(*NOT_COPIED), dirs_exist_ok=True)
        return scratch
    for name in listed:
        source, target = root / name, scratch.tree / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return scratch


def _git_files(root: Path) -> list[str] | None:
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=False,
    )
    return [name for name in done.stdout.decode().split("\0") if name] if done.returncode == 0 else None


def select(sections: Sequence[Section], tier: Tier, only: Iterable[str], without: Iterable[str] = ()) -> list[Section]:
    """The sections to run, in order: those of `tier` that `only` names (FILE or FILE:SECTION; all when empty) in files
    that `without` does not name, each after what it needs, wherever that is. A server is run by the sections that say
    `with`, never on its own."""
    wanted = list(only)
    for name in wanted:
        if not any(name in (s.file, s.ref) for s in sections):
            raise ManualError(f"--only {name}: no such file or section; `commands.py list` shows them all")
    named = [s for s in sections if not wanted or s.file in wanted or s.ref in wanted]
    left_out = set(without)
    chosen = [s for s in named if s.tier is tier and s.file not in left_out]
    ordered: list[Section] = []
    for section in chosen:
        _add(section, sections, ordered, ())
    return [s for s in ordered if not s.background]


def _add(section: Section, sections: Sequence[Section], ordered: list[Section], above: tuple[str, ...]) -> None:
    if section in ordered:
        return
    if section.ref in above:
        raise ManualError(f"sections need each other in a circle: {' -> '.join((*above, section.ref))}")
    for ref in (*section.needs, *section.servers):
        if ref != "no-model":
            _add(find(sections, ref), sections, ordered, (*above, section.ref))
    ordered.append(section)


def run(scratch: Scratch, selected: Sequence[Section], sections: Sequence[Section]) -> Iterator[Outcome]:
    """Run each section and yield how it went; a later section runs even if an earlier one failed."""
    for number, section in enumerate(selected, 1):
        yield _run_one(scratch, section, [find(sections, ref) for ref in section.servers], number)


def _run_one(scratch: Scratch, section: Section, servers: Sequence[Section], number: int) -> Outcome:
    log = scratch.logs / f"{number:03d}-{section.file}.{section.name}.log"
    started = time.monotonic()
    try:
        _require_free_ports((*servers, section))
        _provide_model(scratch, section)
        with ExitStack() as stack:
            for server in servers:
                stack.enter_context(_serving(scratch, server, log.with_suffix(f".{server.name}.log")))
            code = _bash(scratch, section, log)
        problem = _judge(section, code, log)
    except ManualError as error:
        problem = error.message
    return Outcome(section, time.monotonic() - started, log, problem)


def _require_free_ports(sections: Iterable[Section]) -> None:
    """Nobody may answer where these sections start servers: the commands would talk to somebody else's."""
    for section in sections:
        for port in ports(section):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                raise ManualError(
                    f"{section.ref} starts a server on port {port}, where another one answers already; stop that one "
                    f"(`ss -ltnp 'sport = :{port}'` names it) and run the section again"
                )


def ports(section: Section) -> list[int]:
    """The ports of the servers that a section starts: of its `background` URL, and of every `--port` in its body."""
    found = {int(port) for port in re.findall(r"--port[ =](\d+)", section.body)}
    background = urlsplit(section.background).port if section.background else None
    return sorted(found | ({background} if background else set()))


def _provide_model(scratch: Scratch, section: Section) -> None:
    """The teaching model where env.sh looks for one, unless this section is the one that makes it."""
    place = scratch.tree / MODEL
    if "no-model" in section.needs:
        if place.is_symlink():
            place.unlink()
        shutil.rmtree(place, ignore_errors=True)
        return
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if scratch.model is not None:
        place.symlink_to(scratch.model.resolve(), target_is_directory=True)
        return
    command = [sys.executable, MAKE_MODEL, "--preset", "tiny", "--out", MODEL]
    done = subprocess.run(
        command, cwd=scratch.tree, env=scratch.environment(), capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        raise ManualError(f"the teaching model could not be made: {(done.stderr or done.stdout).strip()[-800:]}")


def _start(scratch: Scratch, section: Section, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", section.body],
            cwd=scratch.tree,
            env=scratch.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _bash(scratch: Scratch, section: Section, log: Path) -> int | None:
    """The section's exit code, or None when its time ran out."""
    process = _start(scratch, section, log)
    try:
        return process.wait(section.timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _kill_group(process)


@contextmanager
def _serving(scratch: Scratch, server: Section, log: Path) -> Iterator[None]:
    """Keep a background section running; end it as a reader does, with Ctrl-C."""
    process = _start(scratch, server, log)
    try:
        _wait_ready(server, process, log)
        yield
        os.killpg(process.pid, signal.SIGINT)
        try:
            code = process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            raise ManualError(f"{server.ref} did not end within {STOP_GRACE_S:.0f} s of Ctrl-C; see {log}") from None
        if code not in {server.expect, 130, -signal.SIGINT}:
            raise ManualError(f"{server.ref} ended with {code} after Ctrl-C, expected {server.expect}; see {log}")
    finally:
        _kill_group(process)


def _wait_ready(server: Section, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + server.timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ManualError(f"{server.ref} ended with {process.returncode} before it was ready; see {log}")
        try:
            with urllib.request.urlopen(server.background, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise ManualError(f"{server.ref}: {server.background} did not answer within {server.timeout_s} s; see {log}")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _judge(section: Section, code: int | None, log: Path) -> str:
    if code is None:
        return f"did not end within {section.timeout_s} s ('# timeout:' sets the limit)"
    if code != section.expect:
        return f"exit code {code}, expected {section.expect}"
    output = log.read_text(encoding="utf-8", errors="replace")
    absent = [wanted for wanted in section.prints if wanted not in output]
    return f"its output lacks {absent[0]!r}" if absent else ""


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log, for a report."""
    if not log.is_file():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
