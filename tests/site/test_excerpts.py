"""Code excerpts: located by name, with the line numbers the file has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nanolab.manual import baseline, excerpts
from nanolab.manual.errors import ManualError

SOURCE = '''"""A module."""

LIMIT: int = 4
names = ["a"]


class Scheduler:
    """Docs."""

    @property
    def width(self):
        return 1

    # --8<-- [start:select]
    async def schedule(self, n):
        if n:
            return n

        return 0
    # --8<-- [end:select]
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "s.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("picked", "first", "last", "start"),
    [
        ({"symbol": "Scheduler.width"}, 10, 12, "@property\ndef width"),
        ({"symbol": "Scheduler.schedule"}, 15, 19, "async def schedule"),
        ({"symbol": "LIMIT"}, 3, 3, "LIMIT"),
        ({"symbol": "names"}, 4, 4, "names"),
        ({"symbol": "Scheduler", "start": "@property", "end": "return 1"}, 10, 12, "@property"),
        ({"section": "select"}, 15, 19, "async def schedule"),
        ({"section": "select", "start": "if n"}, 16, 19, "if n:\n    return n"),
        ({}, 1, 20, '"""A module'),
    ],
)
def test_located_by_name(root: Path, picked: dict[str, str], first: int, last: int, start: str) -> None:
    excerpt = excerpts.extract(root, "src/s.py", **picked)
    assert (excerpt.first, excerpt.last) == (first, last)
    assert excerpt.code.startswith(start)
    assert excerpt.code.splitlines()[-1].strip() == SOURCE.splitlines()[last - 1].strip()


@pytest.mark.parametrize(
    ("file", "picked", "why"),
    [
        ("src/s.py", {"symbol": "Scheduler.gone"}, "no symbol 'Scheduler.gone'"),
        ("src/s.py", {"section": "gone"}, "no section 'gone'"),
        ("src/s.py", {"symbol": "Scheduler", "start": "gone"}, "'gone' is not in lines"),
        ("src/s.py", {"symbol": "Scheduler", "section": "select"}, "not both"),
        ("src/gone.py", {}, "no file"),
        ("../outside.py", {}, "outside the tree"),
    ],
)
def test_what_is_missing_is_named(root: Path, file: str, picked: dict[str, str], why: str) -> None:
    with pytest.raises(ManualError, match=why):
        excerpts.extract(root, file, **picked)


def test_a_long_file_is_not_shown_whole(root: Path) -> None:
    (root / "long.py").write_text("x = 1\n" * 200)
    with pytest.raises(ManualError, match="200 lines"):
        excerpts.extract(root, "long.py")
    (root / "long.patch").write_text("+x = 1\n" * 200)
    assert excerpts.extract(root, "long.patch").language == "diff"


def test_the_baseline_is_the_source_without_the_series(root: Path) -> None:
    assert baseline.baseline_tree(root) == root
    package = root / "src" / "nanoengine"
    package.mkdir()
    (package / "step.py").write_text("old = 1\n")
    patch = _diff(root / "src", package / "step.py", "new = 2\n")
    (root / "patches").mkdir()
    (root / "patches" / "01.patch").write_text(patch)
    (root / "patches" / "series").write_text("# in order\n01.patch\n")
    baseline.baseline_tree.cache_clear()
    tree = baseline.baseline_tree(root)
    assert (tree / "src" / "nanoengine" / "step.py").read_text() == "old = 1\n"
    assert (package / "step.py").read_text() == "new = 2\n"
    (package / "step.py").write_text("other = 3\n")
    baseline.baseline_tree.cache_clear()
    with pytest.raises(ManualError, match=r"01\.patch does not reverse"):
        baseline.baseline_tree(root)


def _diff(root: Path, file: Path, new: str) -> str:
    name = file.relative_to(root).as_posix()
    old = file.read_text()
    file.write_text(new)
    before, after = root / "a", root / "b"
    for side, text in ((before, old), (after, new)):
        (side / name).parent.mkdir(parents=True)
        (side / name).write_text(text)
    command = ["git", "diff", "--no-index", "--no-prefix", f"a/{name}", f"b/{name}"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout
