"""Looking at a finished zip as somebody who did not build it: form, contents, sums, leaks, and the manual inside."""

from __future__ import annotations

import hashlib
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from nanolab.bundle import archive, book, contents, scan, sums, tree
from nanolab.bundle.contents import REQUIRED, TOP, Release
from nanolab.errors import LabError

__all__ = ["problems", "release_of"]

# Never part of a release: weights and logits, other people's source, what Setup makes.
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".npy", ".onnx", ".pyc", ".so", ".whl")
_TOP_FOLDERS = {"engine", "models", "nano-vllm"}
_FOLDERS = {"nanovllm", "__pycache__", ".git", "node_modules"}
_MODES = {0o100644, 0o100755}


def problems(path: Path) -> list[str]:
    """One line for each thing that is wrong with the zip at `path`; empty when it may be published."""
    try:
        with zipfile.ZipFile(path) as opened:
            infos = opened.infolist()
            found = [*_form(infos), *_names(infos)]
            if found:
                return found  # what follows trusts names and entries
            files = {i.filename.removeprefix(f"{TOP}/"): opened.read(i) for i in infos if not i.is_dir()}
    except (zipfile.BadZipFile, OSError) as error:
        raise LabError(f"{path} is no zip that can be read ({error}); build it with `bundle.py build`.") from error
    folders = {i.filename.removeprefix(f"{TOP}/").rstrip("/") for i in infos if i.is_dir()}
    return [*_contents(files, folders), *_sums(files), *_leaks(files), *_manual(files)]


def release_of(path: Path) -> Release:
    """What the zip says it was made from."""
    with zipfile.ZipFile(path) as opened:
        return contents.release_of(opened.read(f"{TOP}/validation/release.json"))


def _form(infos: list[zipfile.ZipInfo]) -> Iterator[str]:
    """What makes two builds the same bytes."""
    names = [info.filename for info in infos]
    if names != sorted(names, key=lambda name: name.rstrip("/").encode()):
        yield "the entries are not sorted by name"
    if len({info.date_time for info in infos}) > 1:
        yield "the entries do not all carry the same date"
    for info in infos:
        mode = info.external_attr >> 16
        allowed = {archive.DIRECTORY_MODE} if info.is_dir() else _MODES
        if info.compress_type != zipfile.ZIP_STORED or info.create_system != archive.CREATE_SYSTEM:
            yield f"{info.filename} is not stored as Unix stores it"
        if mode not in allowed:
            yield f"{info.filename} has mode {stat.filemode(mode)}"
        if info.extra or info.comment:
            yield f"{info.filename} carries extra data"


def _names(infos: list[zipfile.ZipInfo]) -> Iterator[str]:
    names = [info.filename for info in infos]
    yield from (f"{name} stands twice" for name in sorted({n for n in names if names.count(n) > 1}))
    for name in names:
        parts = name.rstrip("/").split("/")
        if parts[0] != TOP or ".." in parts or "" in parts or "\\" in name:
            yield f"{name} is outside the one top directory {TOP}/"


def _contents(files: Mapping[str, bytes], folders: set[str]) -> Iterator[str]:
    yield from (f"{name} is missing" for name in REQUIRED if name not in files and name not in folders)
    for name in files:
        if name.endswith(_SUFFIXES):
            yield f"{name} does not belong into a release"
        folders_of = name.split("/")[:-1]
        if _FOLDERS & set(folders_of) or _TOP_FOLDERS & set(folders_of[:1]):
            yield f"{name} lies in a directory that is not released"
        if name.startswith("runs/"):
            yield f"{name}: runs/ must be empty"


def _sums(files: Mapping[str, bytes]) -> list[str]:
    if sums.NAME not in files:
        return []  # already reported as missing
    own = {name for name in files if name != sums.NAME and name.partition("/")[0] not in tree.CREATED}
    now = {name: hashlib.sha256(files[name]).hexdigest() for name in own}
    return [f"{sums.NAME}: {line}" for line in sums.differences(sums.parse(files[sums.NAME].decode()), now)]


def _leaks(files: Mapping[str, bytes]) -> list[str]:
    words = scan.machine_words()
    return [line for name, data in files.items() for line in scan.findings(name, data, words)]


def _manual(files: Mapping[str, bytes]) -> list[str]:
    """The single file stands alone and says what the site says."""
    if book.NAME not in files:
        return []
    html = files[book.NAME].decode()
    with tempfile.TemporaryDirectory(prefix="nanolab-check-") as scratch:
        for name, data in files.items():
            if name.startswith("site/") and name.endswith(".html"):
                target = Path(scratch, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        differences = book.text_differences(html, Path(scratch, "site"))
    return [f"{book.NAME}: {line}" for line in [*book.problems(html), *differences]]
