"""Nothing in a released file may say where or by whom it was made.

Two kinds of finding: what any machine would call a leak (a home directory, an installed package's place) and what only
the building machine can know (its own directories, user and host).
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from nanolab.evidence import repo_root

__all__ = ["findings", "machine_words"]

_GENERAL = (
    ("a home directory", re.compile(rb"/(?:home|Users)/(?!YOUR)[A-Za-z0-9_][\w.-]*/")),
    ("root's directory", re.compile(rb"(?<![\w.$}>~-])/root/[\w.]")),
    ("a Windows home", re.compile(rb"[A-Za-z]:\\+Users\\+\w")),
    ("an installed package's place", re.compile(rb"/lib/python3\.\d+/(?:site|dist)-packages/")),
    ("a temporary directory", re.compile(rb"/tmp/(?:tmp|pytest|nanolab-)[\w-]+")),
)
# Names that identify nobody, or that are words of the manual.
_ANONYMOUS = {
    *("root", "user", "users", "runner", "ubuntu", "debian", "nobody", "admin", "learner", "student", "builder"),
    *("localhost", "host", "docker", "container", "nanolab", "nano", "python", "engine", "model"),
}


def machine_words(extra: Iterable[Path] = ()) -> dict[str, bytes]:
    """{what it is: its bytes} for what identifies this machine. `extra`: directories of this build."""
    places = [repo_root(), Path(sys.prefix), Path.home(), Path(tempfile.gettempdir()), *extra]
    words = {f"the directory {place}": str(place) for place in places if len(place.parts) > 2}
    names = {
        "the user": _user(),
        "the host": socket.gethostname(),
        "the host's name": socket.gethostname().split(".")[0],
    }
    words |= {what: name for what, name in names.items() if len(name) > 3 and name.lower() not in _ANONYMOUS}
    return {what: os.fsencode(word) for what, word in words.items()}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run an id without an account
        return ""


def findings(name: str, data: bytes, words: dict[str, bytes]) -> list[str]:
    """One line for each thing in the file `name` that must not be released."""
    found = []
    for what, pattern in _GENERAL:
        match = pattern.search(data)
        if match:
            found.append(_line(name, what, data, match.start()))
    for what, word in words.items():
        match = re.search(rb"(?<![A-Za-z0-9])" + re.escape(word) + rb"(?![A-Za-z0-9])", data)
        if match:
            found.append(_line(name, what, data, match.start()))
    return found


def _line(name: str, what: str, data: bytes, at: int) -> str:
    number = data.count(b"\n", 0, at) + 1
    return f"{name}:{number} holds {what}: {data[at : at + 40].decode(errors='replace').splitlines()[0]!r}"
