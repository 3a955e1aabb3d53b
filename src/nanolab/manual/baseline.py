"""The engine as it is before the patch series: the bundled source with every patch reverse-applied.

`baseline_tree(root)` is the only door: it returns a directory that holds `src/nanoengine/` at the baseline. Patches
name their files `nanoengine/...`, as a learner's working copy does. With no `patches/series` the baseline is the
bundled source itself.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from nanolab.manual.errors import ManualError

PACKAGE = "nanoengine"


def series(root: Path) -> list[Path]:
    """The patches in the order in which they apply."""
    listing = root / "patches" / "series"
    if not listing.is_file():
        return []
    names = [line.split("#")[0].strip() for line in listing.read_text(encoding="utf-8").splitlines()]
    return [root / "patches" / name for name in names if name]


@cache
def baseline_tree(root: Path) -> Path:
    """A temporary tree, made once per process, whose `src/nanoengine` is the baseline."""
    patches = series(root)
    if not patches:
        return root
    tree = Path(tempfile.mkdtemp(prefix="nanolab-baseline-"))
    atexit.register(shutil.rmtree, tree, ignore_errors=True)
    shutil.copytree(root / "src" / PACKAGE, tree / "src" / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    for patch in reversed(patches):
        _reverse(patch, tree / "src")
    return tree


def _reverse(patch: Path, directory: Path) -> None:
    command = ["git", "apply", "--reverse", "--whitespace=nowarn", str(patch)]
    # The ceiling keeps git from treating the directory as part of a repository around it.
    done = subprocess.run(
        command,
        cwd=directory,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(directory.parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ManualError(f"{patch.name} does not reverse from the bundled engine: {done.stderr.strip()}")
