"""Keeping machines and people out of blocks: paths, user names and host names.

`Scrubber.clean` rewrites what it can when a block is recorded: repository paths become relative, others
become `$MODEL_DIR/...`, `$HOME/...` or `$ELSEWHERE/name`. `leaks` finds what is left in any block, wherever
it was made; `nanolab.evidence.validate` refuses a block with a leak. `shell_line` is the way back: a recorded
command as a reader types it.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

__all__ = ["Scrubber", "leaks", "shell_line"]

# An absolute path: a slash that begins a word, then name characters; not "3/0/3", "tok/s" or "https://...".
_POSIX_PATH = re.compile(r"(?<![\w.$})\]<:/*~-])/(?=[A-Za-z_.\u4e00-\u9fff])[^\s'\"`,;:()<>|=\[\]{}]*")
_WINDOWS_PATH = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\[^\s'\"]*")
# First parts that are HTTP routes or are the same on every Linux machine.
_HARMLESS = {"v1", "health", "tokenize", "metrics", "generate", "abort", "cancel", "stats", "dev", "proc"}
# Account and host names that identify nobody, or that are words a block needs.
_ANONYMOUS = {
    *("root", "user", "users", "runner", "ubuntu", "debian", "nobody", "admin", "learner", "student", "test"),
    *("localhost", "host", "vm", "gpu", "cpu", "cuda", "nano", "lab", "nanolab", "python", "model", "engine"),
}


def _names() -> dict[str, str]:
    """{variable: name} for the user and host names that must not appear."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run an id without an account
        user = ""
    host = socket.gethostname()
    found = {"$USER": user, "$HOSTNAME": host, "$HOST": host.split(".")[0]}
    return {key: name for key, name in found.items() if len(name) > 2 and name.lower() not in _ANONYMOUS}


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])")


def _place(path: Path) -> re.Pattern[str]:
    """`path` and the slash after it, but not a longer name that begins like it."""
    return re.compile(rf"(?<![\w./-]){re.escape(str(path))}(/(?=[^\s/])|(?![\w.-]))")


def _relabel(label: str, slash: str) -> str:
    """What stands for a known place; the repository (no label) just makes the rest relative."""
    return label + slash if label else "" if slash else "."


def _elsewhere(path: str) -> str:
    return f"$ELSEWHERE/{Path(path).name}" if _is_leak(path) else path


class Scrubber:
    """Rewrites strings so that they say the same on another machine. `root` is the repository."""

    def __init__(self, root: Path, environment: Mapping[str, str] = os.environ) -> None:
        named = [(environment.get(name, ""), f"${name}") for name in ("MODEL_DIR", "NANO_DIR", "TMPDIR", "HOME")]
        places = [(Path(place), label) for place, label in named if os.path.isabs(place)]
        places = [(root, ""), *places, (Path(tempfile.gettempdir()), "$TMPDIR")]
        places += [(place.resolve(), label) for place, label in places]  # a path may come through a symlink
        self._places = [(_place(place), label) for place, label in places if place != Path("/")]
        self._names = [(_word(name), variable) for variable, name in _names().items()]

    def text(self, value: str) -> str:
        """`value` without absolute paths, user name or host name."""
        for pattern, label in self._places:  # first, because a known place may have spaces in its name
            value = pattern.sub(lambda found, label=label: _relabel(label, found[1]), value)  # type: ignore[misc]
        value = _WINDOWS_PATH.sub("$ELSEWHERE", _POSIX_PATH.sub(lambda found: _elsewhere(found[0]), value))
        for pattern, variable in self._names:
            value = pattern.sub(lambda _, name=variable: name, value)  # type: ignore[misc]
        return value

    def clean(self, value: object) -> object:
        """`value` (JSON types) with every string and key rewritten."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.clean(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.clean(item) for item in value]
        return value

    def command(self, argv: list[str]) -> list[str]:
        """argv as typed, but an interpreter given by absolute path becomes its bare name."""
        program = Path(argv[0]).name if os.path.isabs(argv[0]) else argv[0]
        return [self.text(word) for word in [program, *argv[1:]]]


def leaks(block: object) -> list[str]:
    """Where `block` names a machine or a person: one "place: what" line each, empty when clean."""
    patterns = [(_word(name), variable) for variable, name in _names().items()]
    found = []
    for place, text in _strings(block, ""):
        paths = [match[0] for match in _POSIX_PATH.finditer(text) if _is_leak(match[0])]
        paths += _WINDOWS_PATH.findall(text)
        found += [f"{place}: absolute path {path!r}" for path in paths]
        found += [f"{place}: the value of {name}" for pattern, name in patterns if pattern.search(text)]
    return found


def _is_leak(path: str) -> bool:
    parts = Path(path).parts
    return len(parts) > 1 and parts[1] not in _HARMLESS


def _strings(value: object, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield place or "block", value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{place}.{key}".lstrip("."), str(key)
            yield from _strings(item, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, f"{place}[{index}]")


# A block names places of its run by variables, as above. A reader has those of env.sh; the directories
# the recorder wrote to are nobody's any more, and what lay there lies in runs/ of whoever types the command again.
_READERS_VARIABLE = re.compile(r"\$(MODEL_DIR|NANO_DIR)\b")
_SCRATCH = re.compile(r"\$(?:TMPDIR|HOME|ELSEWHERE)/(?:[^,/]+/)*(?=[^,/]+)")
_WORKING_COPY = re.compile(r"\$TMPDIR/(?:[^,/]+/)*engine$")


def shell_line(command: Iterable[str]) -> str:
    """A block's `command` as a line that a reader can copy and run."""
    return " ".join(_quoted(_SCRATCH.sub("runs/", _WORKING_COPY.sub("engine", part))) for part in command)


def _quoted(part: str) -> str:
    """Double quotes where a variable of the reader's is all that needs them, else what the shell asks for."""
    rest, variables = _READERS_VARIABLE.subn("_", part)
    return f'"{part}"' if variables and shlex.quote(rest) == rest else shlex.quote(part)
