"""One small file with everything that comes back from the GPU host: blocks, logs, tables, pictures; no logits."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

__all__ = ["write_archive"]

KEPT = (".json", ".jsonl", ".json.gz", ".log", ".md", ".svg", ".tsv", ".txt", ".err")
LARGEST = 4 * 2**20  # bytes of one file


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
