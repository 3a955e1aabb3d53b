"""The patches as files: `patches/series` names them in order, each is one unified diff under a few lines of prose."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nanolab.errors import LabError
from nanolab.evidence import repo_root

FILE_HEADER = re.compile(r"^diff --git a/(\S+) b/\S+$", re.MULTILINE)
HUNK_HEADER = re.compile(r"^@@ ", re.MULTILINE)


@dataclass(frozen=True)
class Hunk:
    """One hunk of one file, with a diff of its own that holds nothing else."""

    file: str
    number: int  # counted from 1 within the file
    text: str
    diff: str


@dataclass(frozen=True)
class Patch:
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def number(self) -> str:
        return self.name.partition("-")[0]

    @cached_property
    def text(self) -> str:
        return self.path.read_text("utf-8")

    @property
    def prose(self) -> str:
        """What stands above the diff: why the patch exists."""
        return self.text[: self._start]

    @property
    def diff(self) -> str:
        return self.text[self._start :]

    @property
    def _start(self) -> int:
        found = FILE_HEADER.search(self.text)
        if found is None:
            raise LabError(f"{self.path} holds no diff; restore it with `git checkout -- {self.path.name}`")
        return found.start()

    @property
    def files(self) -> list[str]:
        return FILE_HEADER.findall(self.diff)

    def hunks(self) -> list[Hunk]:
        hunks: list[Hunk] = []
        starts = [match.start() for match in FILE_HEADER.finditer(self.diff)]
        for file, start, end in zip(self.files, starts, [*starts[1:], None], strict=True):
            part = self.diff[start:end]
            begins = [match.start() for match in HUNK_HEADER.finditer(part)]
            header = part[: begins[0]]
            for number, (begin, stop) in enumerate(zip(begins, [*begins[1:], None], strict=True), 1):
                text = part[begin:stop]
                hunks.append(Hunk(file, number, text, header + text))
        return hunks


def patches_dir(root: Path | None = None) -> Path:
    return (root or repo_root()) / "patches"


def read_series(root: Path | None = None) -> list[Patch]:
    """The patches in the order of `patches/series`; LabError if the list and the files disagree."""
    directory = patches_dir(root)
    listing = directory / "series"
    if not listing.is_file():
        raise LabError(f"{listing} is missing: the lab package is incomplete. Unpack or clone it again.")
    names = [line.split("#")[0].strip() for line in listing.read_text("utf-8").splitlines()]
    names = [name for name in names if name]
    present = {path.name for path in directory.glob("*.patch")}
    if missing := [name for name in names if name not in present]:
        raise LabError(f"patches/series names {missing[0]}, which is not in patches/; restore the file or the list")
    if unused := sorted(present - set(names)):
        raise LabError(f"patches/{unused[0]} is not listed in patches/series; list it or remove it")
    return [Patch(directory / name) for name in names]


def find_patch(wanted: str, root: Path | None = None) -> Patch:
    """The patch called `wanted`: its number, its name, or its file name."""
    patches = read_series(root)
    for patch in patches:
        if wanted in (patch.number, patch.number.lstrip("0"), patch.name, patch.path.name, str(patch.path)):
            return patch
    known = ", ".join(patch.name for patch in patches)
    raise LabError(f"there is no patch {wanted!r}; the series holds {known}")
