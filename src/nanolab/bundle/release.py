"""From a commit to a zip, and the proof that the same commit gives the same zip elsewhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nanolab.bundle import archive, contents, tree

__all__ = ["build", "rebuilt_differs"]


def build(root: Path, target: Path, version: str, scratch: Path | None = None) -> contents.Release:
    """Write the release of `root`'s commit to `target`. `scratch` is where the work is done (default: temporary)."""
    with tempfile.TemporaryDirectory(prefix="nanolab-bundle-", dir=scratch) as work:
        export = tree.export(root, Path(work, "tree"))
        release = contents.Release(version, export.commit, export.epoch)
        contents.assemble(export.root, release, Path(work, "release"))
        archive.write(Path(work, "release"), target, contents.TOP, export.epoch)
    return release


def rebuilt_differs(root: Path, built: Path, version: str) -> list[str]:
    """Build again in another directory, under another umask and time zone; the names of entries that differ."""
    with tempfile.TemporaryDirectory(prefix="again-") as elsewhere, _other_surroundings():
        again = Path(elsewhere, built.name)
        build(root, again, version, Path(elsewhere))
        return [] if again.read_bytes() == built.read_bytes() else archive.differing(built, again)


@contextmanager
def _other_surroundings() -> Iterator[None]:
    zone = os.environ.get("TZ")
    mask = os.umask(0o077)
    os.environ["TZ"] = "Pacific/Chatham"
    try:
        yield
    finally:
        os.umask(mask)
        if zone is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = zone
