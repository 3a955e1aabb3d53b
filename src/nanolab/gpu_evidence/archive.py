"""One small file with everything that comes back from the GPU host: blocks, logs, tables, pictures; no logits."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from nanolab.errors import LabError

__all__ = ["read_archive", "write_archive"]

KEPT = (".json", ".jsonl", ".json.gz", ".log", ".md", ".svg", ".tsv", ".txt", ".err")
LARGEST = 4 * 2**20  # bytes of one file


def read_archive(source: Path, directory: Path) -> None:
    """Unpack an earlier run's archive, so that this run goes on where that one ended, on another machine too.

    What `directory` already holds stays as it is: it may be newer.
    Collections come back without their logits and are made again; what only reads blocks and logs is not.
    """
    try:
        with tarfile.open(source) as archive:
            missing = [member for member in archive if not (directory / member.name).exists()]
            archive.extractall(directory, missing, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise LabError(f"cannot unpack {source} ({error}); give the evidence.tar.gz of an earlier run") from error


def write_archive(directory: Path, target: Path) -> list[str]:
    """Pack the kept files of `directory` and of its `logs/`; returns the names of those that were too large."""
    found = sorted(path for place in (directory, directory / "logs") for path in place.glob("*") if path.is_file())
    kept = [path for path in found if path.name.endswith(KEPT) and not path.name.startswith(".")]
    temporary = target.with_name(f".{target.name}.tmp")
    with tarfile.open(temporary, "w:gz", compresslevel=5) as archive:
        for path in kept:
            if path.stat().st_size <= LARGEST:
                content = path.read_bytes()
                entry = tarfile.TarInfo(path.relative_to(directory).as_posix())
                entry.size, entry.mtime = len(content), int(path.stat().st_mtime)
                archive.addfile(entry, io.BytesIO(content))
    os.replace(temporary, target)
    return [path.name for path in kept if path.stat().st_size > LARGEST]
