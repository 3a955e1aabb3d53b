"""The files that make up the lab: which ones they are, with or without git, and a clean copy of one commit."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from nanolab.errors import LabError

__all__ = ["CREATED", "Export", "export", "files", "is_repository", "uncommitted"]

# What Setup and runs create or rewrite; a learner's own from the first command on.
CREATED = ("engine", "models", "notes", "runs")
# Without git, what a tree collects that was never part of it.
_RESIDUE = (".*", "__pycache__", "*.egg-info", "*.pyc", "build", "dist", "nano-vllm", "learning-evidence.tar.gz")


@dataclass(frozen=True)
class Export:
    """A clean copy of the lab: where it is, the commit (empty without git) and the date it carries."""

    root: Path
    commit: str
    epoch: int  # seconds since 1970, UTC


def is_repository(root: Path) -> bool:
    """Whether `root` itself is a git checkout; one that merely encloses it is somebody else's."""
    top = _git(root, "rev-parse", "--show-toplevel")
    return top is not None and Path(os.fsdecode(top).strip()).resolve() == root.resolve()


def files(root: Path) -> list[str]:
    """The lab's files below `root`, sorted by name: those git tracks, or without git all but residue and `CREATED`."""
    if is_repository(root):
        listed = os.fsdecode(_git(root, "ls-files", "-z", "--cached") or b"").split("\0")
        names = [name for name in listed if name]
    else:
        names = list(_walk(root))
    return sorted(name for name in names if name.partition("/")[0] not in CREATED)


def _walk(root: Path) -> list[str]:
    found = []
    for directory, folders, names in os.walk(root):
        here = Path(directory).relative_to(root)
        folders[:] = [name for name in folders if not _is_residue(name)]
        found += [(here / name).as_posix() for name in names if not _is_residue(name)]
    return found


def _is_residue(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _RESIDUE)


def export(root: Path, destination: Path, revision: str = "HEAD") -> Export:
    """Copy the lab into `destination` (new or empty): what `revision` holds, or without git what stands in `root`.

    The date is SOURCE_DATE_EPOCH, or the commit's own.
    """
    destination.mkdir(parents=True, exist_ok=True)
    if not is_repository(root):
        for name in files(root):
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, destination / name)
        return Export(destination, "", _epoch(None))
    archive = _git(root, "archive", "--format=tar", revision)
    if archive is None:
        raise LabError(f"git archive {revision} failed: a release is made from a commit of this repository.")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(destination, filter="data")
    commit = (_git(root, "rev-parse", f"{revision}^{{commit}}") or b"").decode().strip()
    return Export(destination, commit, _epoch(_git(root, "log", "-1", "--format=%ct", revision)))


def _epoch(committed: bytes | None) -> int:
    value = os.environ.get("SOURCE_DATE_EPOCH") or (committed or b"").decode().strip()
    if not value.isdecimal():
        raise LabError(
            f"SOURCE_DATE_EPOCH={value!r} is no number of seconds since 1970. Outside a git checkout it gives the "
            "bundle its date: export SOURCE_DATE_EPOCH=1767225600"
        )
    return int(value)


def uncommitted(root: Path) -> list[str]:
    """Tracked files that differ from HEAD; they are not in an export."""
    status = os.fsdecode(_git(root, "status", "--porcelain", "-z", "--untracked-files=no") or b"")
    return [entry[3:] for entry in status.split("\0") if entry[2:3] == " "]


def _git(root: Path, *arguments: str) -> bytes | None:
    """git's output, or None when there is no git or it fails."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
