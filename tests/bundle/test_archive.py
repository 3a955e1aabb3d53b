"""The same tree gives the same zip, wherever and however it was written."""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path

import pytest
from bundle_lab import write

from nanolab.bundle import archive
from nanolab.errors import LabError

FILES = {"b.txt": "b", "a/实.html": "字", "a-z": "-", "a.sh": "#!/bin/sh\n"}
EPOCH = 1767225601


def make(root: Path, names: list[str], mask: int) -> Path:
    """The same files, made in another order under another umask."""
    before = os.umask(mask)
    try:
        for name in names:
            write(root, {name: FILES[name]})
        (root / "a.sh").chmod(0o700 if mask else 0o755)
        (root / "runs").mkdir()
    finally:
        os.umask(before)
    return root


def test_bytes_depend_on_names_contents_and_date_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "one.zip", tmp_path / "elsewhere" / "other.zip"
    archive.write(make(tmp_path / "x", sorted(FILES), 0o022), one, "top", EPOCH)
    monkeypatch.setenv("TZ", "Pacific/Chatham")
    time.tzset()
    try:
        archive.write(make(tmp_path / "y", sorted(FILES, reverse=True), 0o077), other, "top", EPOCH)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert one.read_bytes() == other.read_bytes()
    archive.write(tmp_path / "x", other, "top", EPOCH + 60)
    assert one.read_bytes() != other.read_bytes()


def test_entries_are_plain(tmp_path: Path) -> None:
    archive.write(make(tmp_path / "x", list(FILES), 0o022), tmp_path / "z.zip", "top", EPOCH)
    with zipfile.ZipFile(tmp_path / "z.zip") as opened:
        infos = {info.filename: info for info in opened.infolist()}
    assert list(infos) == ["top/", "top/a/", "top/a-z", "top/a.sh", "top/a/实.html", "top/b.txt", "top/runs/"]
    assert {info.date_time for info in infos.values()} == {(2026, 1, 1, 0, 0, 0)}
    assert infos["top/a.sh"].external_attr >> 16 == 0o100755
    assert infos["top/b.txt"].external_attr >> 16 == 0o100644
    assert infos["top/runs/"].is_dir()
    assert {info.compress_type for info in infos.values()} == {zipfile.ZIP_STORED}


def test_a_date_before_zips_began_is_refused() -> None:
    with pytest.raises(LabError, match="1980"):
        archive.date_time(0)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path / "x", {"a": "1"})
    (tmp_path / "x" / "dead").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        archive.write(tmp_path / "x", tmp_path / "z.zip", "top", EPOCH)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]


def test_differing_names_the_entries(tmp_path: Path) -> None:
    write(tmp_path / "x", {"a": "1", "b": "2"})
    write(tmp_path / "y", {"a": "1", "b": "3", "c": "4"})
    for name in "xy":
        archive.write(tmp_path / name, tmp_path / f"{name}.zip", "top", EPOCH)
    assert archive.differing(tmp_path / "x.zip", tmp_path / "y.zip") == ["top/b", "top/c"]
