"""A zip that is the same bytes wherever it is written.

Entries are stored, not deflated: the bytes of a deflated entry depend on the zlib that Python was built with. Names are
sorted, every date is the bundle's, modes are 644 or 755 whatever the umask, and nothing else of the machine is kept.
"""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path

from nanolab.errors import LabError

__all__ = ["CREATE_SYSTEM", "DIRECTORY_MODE", "date_time", "differing", "entry", "write"]

CREATE_SYSTEM = 3  # Unix: what the modes mean
DIRECTORY_MODE = 0o40755
_FILE_MODES = {False: 0o100644, True: 0o100755}
_UTF8 = 0x800
_EARLIEST = 315532800  # 1980-01-01, where a zip's calendar begins


def date_time(epoch: int) -> tuple[int, int, int, int, int, int]:
    """The zip's form of a date in UTC; it counts two seconds at a time."""
    if epoch < _EARLIEST:
        raise LabError(f"a zip cannot hold the date {epoch}; SOURCE_DATE_EPOCH must be at least {_EARLIEST} (1980).")
    year, month, day, hour, minute, second = time.gmtime(epoch)[:6]
    return year, month, day, hour, minute, second // 2 * 2


def entry(name: str, epoch: int, *, executable: bool = False) -> zipfile.ZipInfo:
    """One entry's header; a name that ends with a slash is a directory."""
    info = zipfile.ZipInfo(name, date_time(epoch))
    info.create_system = CREATE_SYSTEM
    info.compress_type = zipfile.ZIP_STORED
    is_directory = name.endswith("/")
    mode = DIRECTORY_MODE if is_directory else _FILE_MODES[executable]
    info.external_attr = mode << 16 | (0x10 if is_directory else 0)
    info.flag_bits |= _UTF8 if not name.isascii() else 0
    return info


def write(tree: Path, target: Path, top: str, epoch: int) -> None:
    """Write everything below `tree`, empty directories included, as `top/...` into `target`, in one move."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w") as archive:
            archive.writestr(entry(f"{top}/", epoch), b"")
            for path in sorted(tree.rglob("*"), key=lambda p: p.relative_to(tree).as_posix().encode()):
                name = f"{top}/{path.relative_to(tree).as_posix()}"
                if path.is_dir():
                    archive.writestr(entry(f"{name}/", epoch), b"")
                else:
                    executable = bool(path.stat().st_mode & 0o100)
                    archive.writestr(entry(name, epoch, executable=executable), path.read_bytes())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def differing(one: Path, other: Path) -> list[str]:
    """Names of entries that are not the same in both zips; the archive itself when only its frame differs."""
    with zipfile.ZipFile(one) as a, zipfile.ZipFile(other) as b:
        names = sorted({*a.namelist(), *b.namelist()})
        both = set(a.namelist()) & set(b.namelist())
        return [n for n in names if n not in both or a.read(n) != b.read(n)] or ["the frame of the archive"]
