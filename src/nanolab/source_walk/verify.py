"""Is this engine the one that the manual's numbers were made with?"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from nanolab.errors import LabError
from nanolab.patches import build_baseline, edits_between, pinned
from nanolab.patches.git import git
from nanolab.sources import EngineSource

UPSTREAM_PIN = "bb823b3e06983d71485a8e1f23715ebd87d98ef8"


def changes(source: EngineSource) -> list[str]:
    """What differs from the pinned source, one line a file; empty means that it is the pinned source.

    Pinned is: for a working copy the baseline, for a clone of upstream its pin, for the bundled engine the baseline
    with every patch of the series.
    """
    if source.kind == "bundled":
        return bundled_changes()
    if source.kind == "upstream":
        return upstream_changes(source.root)
    with tempfile.TemporaryDirectory(prefix="nanolab-verify-") as scratch:
        baseline = build_baseline(Path(scratch))
        return [str(edit) for edit in edits_between(baseline, source.root)]


def bundled_changes() -> list[str]:
    from nanolab.patches.baseline import bundled_root, engine_sha256

    if engine_sha256(bundled_root()) == pinned().bundled_sha256:
        return []
    return ["src/nanoengine is not the engine that patches/baseline.json pins; `patches.py check` says where"]


def upstream_changes(clone: Path) -> list[str]:
    place = shlex.quote(str(clone))
    head = git("rev-parse", "--verify", "--quiet", "HEAD", cwd=clone).stdout.strip()
    if not head:
        raise LabError(
            f"{clone} is no git clone, so it cannot be compared with the pin. Make one: `python "
            "scripts/e2e/engine_source.py upstream --dir NEW_DIRECTORY` prints the commands."
        )
    if git("cat-file", "-e", f"{UPSTREAM_PIN}^{{commit}}", cwd=clone).returncode:
        raise LabError(
            f"{clone} is at commit {head} and does not hold the pin {UPSTREAM_PIN}. Get it with `git -C {place} fetch "
            f"origin {UPSTREAM_PIN}`, then `git -C {place} checkout --detach {UPSTREAM_PIN}`."
        )
    different = git("diff", "--name-status", "--no-renames", UPSTREAM_PIN, "--", "nanovllm", cwd=clone).stdout
    untracked = git("ls-files", "--others", "--exclude-standard", "--", "nanovllm", cwd=clone).stdout
    kinds = {"A": "added", "D": "removed"}
    rows = [line.split("\t", 1) for line in different.splitlines()]
    lines = [f"{kinds.get(kind, 'changed'):8} {name}" for kind, name in rows]
    lines += [f"added    {name}" for name in untracked.splitlines()]
    if lines and head != UPSTREAM_PIN:
        lines.insert(0, f"HEAD is {head}, the pin is {UPSTREAM_PIN}: `git -C {place} checkout --detach {UPSTREAM_PIN}`")
    return lines
