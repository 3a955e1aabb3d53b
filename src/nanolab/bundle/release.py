"""From a commit to a zip, and the proof that the same commit gives the same zip elsewhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nanolab.bundle import archive, check, contents, tree
from nanolab.bundle.contents import Release

__all__ = ["build", "rebuilt_differs"]


def build(root: Path, target: Path, version: str, *, revision: str = "HEAD", work: Path | None = None) -> Release:
    """Write the release of a commit of `root` to `target`. `work`: where to do it (default: a temporary directory)."""
    with tempfile.TemporaryDirectory(prefix="nanolab-bundle-", dir=work) as scratch:
        export = tree.export(root, Path(scratch, "tree"), revision)
        release = Release(version, export.commit, export.epoch)
        contents.assemble(export.root, release, Path(scratch, "release"))
        archive.write(Path(scratch, "release"), target, contents.TOP, export.epoch)
    return release


def rebuilt_differs(root: Path, built: Path) -> list[str]:
    """Build the same commit again in another directory, under another umask and time zone; what differs, by name."""
    release = check.release_of(built)
    surroundings = {"TZ": "Pacific/Chatham", "SOURCE_DATE_EPOCH": str(release.epoch)}
    with tempfile.TemporaryDirectory(prefix="again-") as elsewhere, _changed(surroundings, umask=0o077):
        again = Path(elsewhere, built.name)
        build(root, again, release.version, revision=release.commit or "HEAD", work=Path(elsewhere))
        return [] if again.read_bytes() == built.read_bytes() else archive.differing(built, again)


@contextmanager
def _changed(variables: dict[str, str], umask: int) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    mask = os.umask(umask)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.umask(mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
