"""Writing results: checked before the work, atomic after it.

Contract: a reader of `path` sees the previous file or the complete new one, never a part. The new bytes are
written beside it and moved over it, so a killed writer leaves at most a hidden `.NAME.*.tmp` file.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

from nanolab.errors import LabError

__all__ = ["check_writable", "format_json", "write_atomic"]

_INLINE_WIDTH = 100  # containers that fit in one line of this width stay on it


def check_writable(path: Path) -> Path:
    """Refuse, before any work, an output that could not be written at the end; returns the path to write.

    The parent directory is made. A symbolic link is followed, so that the file it names is the one replaced.
    """
    target = path.resolve()
    if target.is_dir():
        raise LabError(f"--out {path} is a directory; give a file name, for example {path}/result.json.")
    if target.exists() and not target.is_file():
        raise LabError(f"--out {path} is not a regular file; give a file name, for example runs/result.json.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _temporary_beside(target).unlink()
    except OSError as error:
        raise LabError(
            f"--out {path} cannot be written: {error.strerror}. Nothing was run; "
            "choose a directory you can write to, for example runs/."
        ) from error
    return target


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one move; on an error the previous file stays and no part is left."""
    temporary = _temporary_beside(path)
    try:
        with temporary.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _temporary_beside(target: Path) -> Path:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    os.fchmod(descriptor, 0o666 & ~_umask())  # mkstemp gives 0600; results are meant to be read
    os.close(descriptor)
    return Path(name)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def format_json(value: object) -> str:
    """Deterministic JSON text: keys in the order given, short lists on one line, one newline at the end."""
    return _format(value, indent=0) + "\n"


def _format(value: object, indent: int) -> str:
    inline = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, dict | list) or not value:
        return inline
    if _is_flat(value) and len(inline) + indent <= _INLINE_WIDTH:
        return inline
    if isinstance(value, dict):
        keys = [json.dumps(key, ensure_ascii=False) + ": " for key in value]
        items, opening, closing = list(value.values()), "{", "}"
    else:
        keys, items, opening, closing = [""] * len(value), value, "[", "]"
    pad = "\n" + " " * (indent + 2)
    body = ",".join(pad + key + _format(item, indent + 2) for key, item in zip(keys, items, strict=True))
    return f"{opening}{body}\n{' ' * indent}{closing}"


def _is_flat(value: dict[str, object] | list[object]) -> bool:
    """Whether a container may stand on one line: it holds scalars and lists of scalars only."""
    items = value.values() if isinstance(value, dict) else value
    return not any(isinstance(item, dict) or (isinstance(item, list) and _nests(item)) for item in items)


def _nests(items: list[object]) -> bool:
    return any(isinstance(item, dict | list) for item in items)
