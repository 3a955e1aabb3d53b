"""The manual's CPU path, followed from the zip alone in an empty home.

Contract: the repository is not used. Commands are the bundle's own (docs/commands), run in place by the bundle's own
code; the caller gives an interpreter and, with `venv`, the package index. Afterwards SHA256SUMS must still verify.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanolab.bundle.contents import TOP
from nanolab.errors import LabError
from nanolab.manual import commands, runner
from nanolab.manual.commands import Section, Tier

__all__ = ["PATH", "follow", "rehearse"]

PATH = ("5-1-setup", "5-2-requests-and-kv", "5-3-service", "5-4-scheduling", "b-1-mathematics", "b-2-logs")
PACKAGE = f"{TOP}-v6.zip"  # the name that the manual's commands use
VENV = ".venv-nano"
# The steps that need no host of the reader's, as the manual prints them.
UNZIP = "5-1-setup:unzip"
INSTALL = ("5-1-setup:venv", "5-1-setup:base-cpu", "5-3-service:openai-install")
_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "OMP_NUM_THREADS", "SSL_CERT_FILE")

Say = Callable[[str], object]


@dataclass
class InPlace(runner.Scratch):
    """The runner's scratch, except that the tree is the reader's own directory."""

    place: Path = Path()

    @property
    def tree(self) -> Path:
        return self.place


def follow(root: Path, logs: Path, only: Sequence[str], say: Say) -> int:
    """Run CPU sections in `root` itself, as a reader does; returns how many failed. Files not there yet are skipped."""
    sections = commands.load(root)
    known = {section.file for section in sections}
    wanted = [name for name in only if name.partition(":")[0] in known]
    scratch = InPlace(logs, place=root)
    for path in (scratch.logs, logs / "home"):
        path.mkdir(parents=True, exist_ok=True)
    selected = runner.select(sections, Tier.CPU, wanted)
    failed = 0
    for number, outcome in enumerate(runner.run(scratch, selected, sections), 1):
        failed += bool(outcome.problem)
        say(
            f"[{number:3}/{len(selected)}] {outcome.section.ref:44} {outcome.seconds:6.1f} s  {outcome.problem or 'ok'}"
        )
        if outcome.problem:
            say(runner.tail(outcome.log))
    return failed


def rehearse(package: Path, home: Path, only: Sequence[str], *, venv: bool, say: Say) -> list[str]:
    """Unzip `package` into the empty `home` and follow the path; one line for each thing that did not hold."""
    home.mkdir(parents=True, exist_ok=True)
    if any(home.iterdir()):
        raise LabError(f"{home} is not empty; a rehearsal starts in a new home, for example --home /tmp/reader.")
    return list(_Rehearsal(home.resolve(), say).run(package, only, venv=venv))


class _Rehearsal:
    def __init__(self, home: Path, say: Say) -> None:
        self.home, self.tree, self.say = home, home / TOP, say
        self.interpreter = Path(sys.executable)

    def environment(self) -> dict[str, str]:
        """A reader's login: an empty home and nothing of the repository."""
        kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("PIP_")}
        return kept | {"HOME": str(self.home), "GIT_CEILING_DIRECTORIES": str(self.home)}

    def run(self, package: Path, only: Sequence[str], *, venv: bool) -> Iterator[str]:
        shutil.copy2(package, self.home / PACKAGE)
        self.unpack_once()
        sections = commands.load(self.tree)
        yield from self.guard(commands.find(sections, UNZIP))
        if venv:
            for ref in INSTALL:
                self.say(f"== {ref}")
                yield from self.step(commands.find(sections, ref), self.tree)
            self.interpreter = self.tree / VENV / "bin" / "python"
        yield from self.elsewhere(venv)
        yield from self.path(only, venv)
        yield from self.verify("after the commands ran")

    def unpack_once(self) -> None:
        """The zip's own unzip command is inside it, so the first time it is unpacked without one."""
        done = subprocess.run(["unzip", "-q", PACKAGE], cwd=self.home, env=self.environment(), capture_output=True)
        if done.returncode:
            raise LabError(f"unzip ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")

    def guard(self, section: Section) -> Iterator[str]:
        """The manual's unzip command: it unpacks into an empty home, and leaves a directory that exists alone."""
        shutil.rmtree(self.tree)
        self.say(f"== {section.ref}, in an empty home")
        yield from self.step(section, self.home)
        edited = self.tree / "env.sh"
        original = edited.read_bytes()
        edited.write_bytes(original + b"# an edit of the reader's\n")
        self.say(f"== {section.ref}, once more: an edited file must stay")
        if self.bash(section, self.home) == 0:
            yield f"{section.ref}: the sums did not notice an edited env.sh"
        if edited.read_bytes() == original:
            yield f"{section.ref}: unpacking again overwrote an edited file"
        edited.write_bytes(original)

    def step(self, section: Section, place: Path) -> Iterator[str]:
        code = self.bash(section, place)
        if code != section.expect:
            yield f"{section.ref} ended with {code}, expected {section.expect}"

    def bash(self, section: Section, place: Path) -> int:
        """A section as the reader types it, in a shell that entered the virtual environment before, if there is one."""
        enter = f"if [ -e {VENV}/bin/activate ]; then source {VENV}/bin/activate; fi\n"
        command = ["bash", "-euo", "pipefail", "-c", enter + section.body]
        done = subprocess.run(command, cwd=place, env=self.environment(), stdin=subprocess.DEVNULL, check=False)
        return done.returncode

    def python(self, venv: bool) -> dict[str, str]:
        """With the caller's interpreter the bundle's sources come first on its path; its own environment has them."""
        return self.environment() | ({} if venv else {"PYTHONPATH": str(self.tree / "src")})

    def elsewhere(self, venv: bool) -> Iterator[str]:
        """The code that runs is the bundle's."""
        command = [str(self.interpreter), "-c", "import nanolab; print(nanolab.__file__)"]
        done = subprocess.run(
            command, cwd=self.home, env=self.python(venv), capture_output=True, text=True, check=False
        )
        if not done.stdout.startswith(f"{self.tree}/"):
            yield f"the bundle's code is not what runs: {done.stdout.strip() or done.stderr[-500:]}"

    def path(self, only: Sequence[str], venv: bool) -> Iterator[str]:
        self.say("== the CPU path: " + " ".join(only))
        program = [str(self.interpreter), "scripts/maintain/bundle.py", "follow", "--logs", str(self.home / "logs")]
        done = subprocess.run([*program, *only], cwd=self.tree, env=self.python(venv), check=False)
        if done.returncode:
            yield f"the CPU path ended with {done.returncode}"

    def verify(self, when: str) -> Iterator[str]:
        command = ["sha256sum", "-c", "--quiet", "SHA256SUMS"]
        done = subprocess.run(
            command, cwd=self.tree, env=self.environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            yield f"SHA256SUMS does not verify {when}: {done.stdout.strip() or done.stderr.strip()}"
