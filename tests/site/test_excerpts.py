"""Code excerpts: located by name, with the line numbers the file has."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanolab.evidence import repo_root
from nanolab.manual import excerpts
from nanolab.manual.errors import ManualError
from nanolab.patches import baseline_tree

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


def test_the_baseline_is_shown_without_the_series() -> None:
    """What the scheduler patch adds stands in the bundled file and not in the baseline's."""
    root = repo_root()
    added = [
        line[1:]
        for patch in sorted((root / "patches").glob("*.patch"))
        for line in patch.read_text(encoding="utf-8").splitlines()
        if line.startswith("+") and not line.startswith("+++") and line.strip("+ ")
    ]
    name = "src/nanoengine/engine/scheduler.py"
    before = excerpts.extract(baseline_tree(root), name, symbol="Scheduler").code
    after = excerpts.extract(root, name, symbol="Scheduler").code
    assert any(line.strip() in after and line.strip() not in before for line in added)
