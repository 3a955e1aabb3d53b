"""What a release holds, put together in one directory."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from nanolab import final_report
from nanolab.bundle import book, documents, site, sums, tree, validation
from nanolab.errors import LabError
from nanolab.evidence import format_json
from nanolab.manual import commands
from nanolab.manual.blocks import BlockStore

__all__ = ["COPIED", "REQUIRED", "TOP", "Release", "assemble", "release_of"]

TOP = "nanovllm-inference-lab"
ASSETS = Path(__file__).parent / "assets"
# Taken from the repository as they are: files, or directories with all that git tracks below them.
COPIED = (
    "LICENSE",
    "docs/commands",
    "docs/evidence",
    "env.sh",
    "patches",
    "pyproject.toml",
    "requirements-cpu.txt",
    "requirements-nano.txt",
    "scripts",
    "src",
    "workloads",
)
# What a reader must find; `check` looks for each.
REQUIRED = (
    *(path for path in COPIED if path != "docs/evidence"),  # empty until the first result is recorded
    *("README.md", book.NAME, "site/index.html", "site/en/index.html", *documents.NAMES, "notes", "runs"),
    *("validation/README.md", "validation/records.json", "validation/release.json", sums.NAME),
)

# The first steps that README.md shows, as the manual has them.
_START = ("5-1-setup:venv", "5-1-setup:base-cpu", "5-1-setup:working-copy")
_VERSION = re.compile(r"v\d+(?:\.\d+)*")


@dataclass(frozen=True)
class Release:
    """What names a release."""

    version: str
    commit: str
    epoch: int

    def __post_init__(self) -> None:
        if not _VERSION.fullmatch(self.version):
            raise LabError(f"--version {self.version!r} is no version; write v and a number, for example v6.")

    @property
    def date(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self.epoch))


def release_of(facts: bytes) -> Release:
    """The release that a validation/release.json names."""
    read = json.loads(facts)
    return Release(read["version"], read["commit"] or "", read["source_date_epoch"])


def assemble(source: Path, release: Release, destination: Path) -> None:
    """Fill `destination` (new) with the release made from the clean tree `source`, whose site this builds."""
    destination.mkdir(parents=True)
    _copy(source, destination)
    built = site.build(source, release.epoch)
    site.copy(built, destination / "site")
    _write(destination / book.NAME, book.build(source, built))
    for name, text in documents.render(source, documents.in_bundle).items():
        _write(destination / name, text)
    _write(destination / "README.md", _readme(source, release))
    _validation(source, release, destination / "validation")
    final_report.init_notes(destination / "notes")
    (destination / "runs").mkdir()
    _write(destination / sums.NAME, sums.render(sums.listing(destination)))


def _copy(source: Path, destination: Path) -> None:
    for name in tree.files(source):
        if any(name == kept or name.startswith(f"{kept}/") for kept in COPIED):
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, destination / name)


def _readme(source: Path, release: Release) -> str:
    sections = commands.load(source)
    start = "\n".join(commands.find(sections, ref).body for ref in _START).rstrip("\n")
    words = {"version": release.version, "date": release.date, "commit": release.commit[:12] or "-", "start": start}
    text = (ASSETS / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: words[match[1]], text)


def _validation(source: Path, release: Release, destination: Path) -> None:
    destination.mkdir()
    store = BlockStore(source, commands.load(source))
    facts = {"version": release.version, "commit": release.commit or None, "source_date_epoch": release.epoch}
    _write(destination / "README.md", (ASSETS / "validation.md").read_text(encoding="utf-8"))
    _write(destination / "records.json", format_json(validation.summary(store)))
    _write(destination / "release.json", format_json(facts))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
