"""SHA256SUMS: one line a file, in the format of `sha256sum -c`, sorted by name.

It lists every file of the lab but itself and what Setup and runs create (notes/, runs/, engine/, models/), so that it
still verifies after every command of the manual has run.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from nanolab.bundle import tree
from nanolab.errors import LabError

__all__ = ["NAME", "differences", "digest", "listing", "parse", "render"]

NAME = "SHA256SUMS"

_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


def listing(root: Path) -> dict[str, str]:
    """{name: sha256} of every file that belongs into SHA256SUMS; a tracked file that was deleted is left out."""
    names = [name for name in tree.files(root) if name != NAME]
    return {name: digest(root / name) for name in names if (root / name).is_file()}


def digest(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def render(digests: dict[str, str]) -> str:
    """The file's text. Names are sorted by their UTF-8 bytes, whatever the locale."""
    odd = [name for name in digests if "\n" in name or "\\" in name]
    if odd:
        raise LabError(f"{odd[0]!r} holds a newline or a backslash, which sha256sum -c reads differently; rename it.")
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests, key=str.encode))


def parse(text: str) -> dict[str, str]:
    """{name: sha256} of a SHA256SUMS text."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise LabError(f"{NAME}:{number} is not 'SHA256  NAME': {line!r}; write it again with `bundle.py sums`.")
        found[match[2]] = match[1]
    return found


def differences(recorded: dict[str, str], now: dict[str, str]) -> list[str]:
    """One line for each file that differs, is missing or is not listed; empty when all is well."""
    found = {name: "is missing" for name in recorded if name not in now}
    found |= {name: "is not listed" for name in now if name not in recorded}
    found |= {name: "differs" for name, digest in recorded.items() if now.get(name, digest) != digest}
    return [f"{name} {what}" for name, what in sorted(found.items())]
