"""Where a result comes from: device, versions, commit, and the bytes of the files that decide it.

Nothing here imports torch until a GPU is described, and nothing returns a host name, user name or absolute
path.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from nanolab.errors import LabError, MissingPrerequisite

__all__ = [
    "Source",
    "describe_device",
    "describe_git",
    "describe_versions",
    "is_stale",
    "matches_commit",
    "repo_root",
    "source_hashes",
    "stale_files",
]

Source = ModuleType | Path | str
_DISTRIBUTIONS = ("torch", "triton", "flash_attn", "transformers", "numpy", "nanolab")
_SOURCE_SUFFIXES = {".py", ".json", ".jsonl", ".patch", ".cu", ".cpp", ".sh", ".yml", ".toml", ".npz"}
# Made by setup and runs, never part of the repository: what they hold is described by `engine` and `model`.
_NOT_SOURCES = ("engine", "models", "runs", "notes", "site", "build", "dist", ".git", ".cache")


def repo_root() -> Path:
    """The package root: the directory that holds src/, scripts/ and docs/."""
    return Path(__file__).resolve().parents[3]


def describe_device(kind: str) -> dict[str, Any]:
    """The block's `device` field for `"cuda"` (the current device) or `"cpu"`."""
    if kind == "cpu":
        return {"kind": "cpu", "name": _cpu_name(), "count": _cpu_count(), "driver": None, "cuda": None}
    if kind != "cuda":
        raise LabError(f"device kind {kind!r} is unknown; it is 'cuda' or 'cpu'.")
    import torch

    if not torch.cuda.is_available():
        raise MissingPrerequisite("no CUDA device is visible to torch; run `python scripts/e2e/doctor.py`.")
    name, count = torch.cuda.get_device_name(), torch.cuda.device_count()
    return {"kind": "cuda", "name": name, "count": count, "driver": _driver(), "cuda": torch.version.cuda}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.machine() or "cpu"


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _driver() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = _output(query)
    return answer.splitlines()[0].strip() if answer else None


def describe_versions() -> dict[str, str | None]:
    """Installed versions, None for what is missing; read from metadata, so nothing heavy is imported."""
    return {"python": platform.python_version(), **{name: _version(name) for name in _DISTRIBUTIONS}}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return _own_version() if distribution == "nanolab" else None


def _own_version() -> str | None:
    """nanolab's version from pyproject.toml when it runs from the source tree without being installed."""
    try:
        lines = (repo_root() / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split('"')[1] for line in lines if line.startswith("version")), None)


def source_hashes(sources: Iterable[Source], root: Path | None = None) -> dict[str, str]:
    """{repository-relative path: sha256} of every file that `sources` names.

    A package or directory stands for all of its files. Files outside the repository, or in directories that
    setup and runs create, are left out: the block's `engine` and `model` describe them.
    """
    root = (root or repo_root()).resolve()
    files = sorted({file.resolve() for source in sources for file in _files(source, root)})
    kept = [file for file in files if _is_repository_file(file, root)]
    return {file.relative_to(root).as_posix(): _sha256(file) for file in kept}


def _files(source: Source, root: Path) -> list[Path]:
    if isinstance(source, ModuleType):
        if source.__file__ is None:
            return [file for place in source.__path__ for file in _files(Path(place), root)]
        module = Path(source.__file__)
        return _files(module.parent, root) if module.name == "__init__.py" else [module]
    path = root / source
    if path.is_file():
        return [path]
    if path.is_dir():
        return [file for file in path.rglob("*") if file.is_file() and file.suffix in _SOURCE_SUFFIXES]
    raise LabError(f"source {str(source)!r} of this result is no file or directory of the repository.")


def _is_repository_file(file: Path, root: Path) -> bool:
    if not file.is_relative_to(root):
        return False
    first = file.relative_to(root).parts[0]
    return first not in _NOT_SOURCES and not first.startswith(".venv") and "__pycache__" not in file.parts


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def stale_files(block: Mapping[str, Any], root: Path | None = None) -> list[str]:
    """The source files of `block` that are missing or differ now."""
    root = root or repo_root()
    recorded: dict[str, str] = block["sources_sha256"]
    return [name for name, digest in recorded.items() if _digest_now(root / name) != digest]


def _digest_now(file: Path) -> str | None:
    return _sha256(file) if file.is_file() else None


def is_stale(block: Mapping[str, Any], root: Path | None = None) -> bool:
    """Whether any file that decided the block's result differs now."""
    return bool(stale_files(block, root))


def describe_git(files: Iterable[str], root: Path | None = None) -> dict[str, Any]:
    """{commit, dirty} of the repository; `dirty` speaks of `files` only. None, None outside a repository."""
    root = (root or repo_root()).resolve()
    # In the offline bundle the enclosing repository, if any, is somebody else's.
    inside = _git(root, "rev-parse", "--show-toplevel") == str(root)
    commit = _git(root, "rev-parse", "HEAD") if inside else None
    if not commit:
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain", "--ignored", "--", *files))}


def matches_commit(block: Mapping[str, Any], root: Path | None = None, revision: str = "HEAD") -> bool:
    """Whether every source file of `block` has, in `revision`, the bytes the block was recorded with."""
    root = root or repo_root()
    recorded: dict[str, str] = block["sources_sha256"]
    return all(_blob_sha256(root, revision, name) == digest for name, digest in recorded.items())


def _blob_sha256(root: Path, revision: str, name: str) -> str | None:
    command = ["git", "-C", str(root), "cat-file", "blob", f"{revision}:{name}"]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return hashlib.sha256(done.stdout).hexdigest()


def _git(root: Path, *arguments: str) -> str | None:
    return _output(["git", "-C", str(root), *arguments])


def _output(command: list[str]) -> str | None:
    """Standard output without the final newline, None when the program is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.rstrip("\n")
