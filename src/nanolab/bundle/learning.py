"""The learner's evidence archive: notes and results with the code that made them, in one small file.

Holds README, VALIDATION, CHECKPOINTS, env.sh, requirements-cpu.txt, scripts, patches, workloads, runs and notes. Left
out, and named: models, environments, copies of an engine, logits and other large files; a diff says what was changed.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanolab.errors import LabError

__all__ = ["NAME", "PARTS", "Packed", "pack"]

NAME = "learning-evidence.tar.gz"
PARTS = (
    *("README.md", "VALIDATION.md", "CHECKPOINTS.md", "env.sh", "requirements-cpu.txt"),
    *("scripts", "patches", "workloads", "runs", "notes"),
)
LARGEST = 16 * 2**20  # bytes of one file; a profile or a table of logits is larger, its block is kept
_WEIGHTS = {".safetensors", ".npz", ".npy", ".bin", ".pt", ".pth", ".gguf"}
_SKIPPED = {"__pycache__", ".git", ".ipynb_checkpoints"}


@dataclass(frozen=True)
class Packed:
    """What went in, and what was left out with the reason."""

    files: list[str]
    left_out: list[str]


def pack(root: Path, target: Path) -> Packed:
    """Write the archive of the lab at `root` to `target`, in one move; a missing part is an error that names it."""
    missing = [part for part in PARTS if not (root / part).exists()]
    if missing:
        raise LabError(
            f"{', '.join(missing)} not found in {root.name}/: run this in the lab's directory; "
            "notes/ comes from `python scripts/e2e/final_report.py --init-notes`, runs/ from any run."
        )
    files: list[str] = []
    left_out: list[str] = []
    for part in PARTS:
        _gather(root, root / part, files, left_out)
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with temporary.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
            _write(root, sorted(files), packed)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return Packed(sorted(files), left_out)


def _gather(root: Path, path: Path, files: list[str], left_out: list[str]) -> None:
    name = path.relative_to(root).as_posix()
    if path.is_symlink():
        left_out.append(f"{name}: a link")
    elif path.is_dir():
        reason = _is_copy(path)
        if reason:
            left_out.append(f"{name}/: {reason}")
            return
        for inner in sorted(path.iterdir()):
            if inner.name not in _SKIPPED:
                _gather(root, inner, files, left_out)
    elif not path.is_file():
        left_out.append(f"{name}: no regular file")  # reading a named pipe would wait for ever
    elif path.suffix in _WEIGHTS:
        left_out.append(f"{name}: numbers of a model")
    elif path.stat().st_size > LARGEST:
        left_out.append(f"{name}: larger than {LARGEST // 2**20} MiB")
    else:
        files.append(name)


def _is_copy(path: Path) -> str:
    if (path / ".git").exists() or (path / "nanoengine").is_dir():
        return "a copy of an engine"
    if (path / "pyvenv.cfg").exists():
        return "an environment"
    return "a model" if any(path.glob("*.safetensors")) else ""


def _write(root: Path, files: list[str], packed: gzip.GzipFile) -> None:
    """Dates are kept, because they say when something was run; owners are not."""
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in _contents(root, files):
            entry = tarfile.TarInfo(name)
            status = (root / name).stat()
            entry.size, entry.mtime = len(content), int(status.st_mtime)
            entry.mode = 0o755 if status.st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(content))


def _contents(root: Path, files: list[str]) -> Iterator[tuple[str, bytes]]:
    for name in files:
        yield name, (root / name).read_bytes()
