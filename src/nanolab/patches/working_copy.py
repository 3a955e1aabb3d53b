"""The learner's working copy: made once, never overwritten, described without touching it."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nanolab.errors import LabError

from .baseline import PACKAGE, build_baseline, commit_baseline, pinned
from .git import git, git_output

INIT = "python scripts/e2e/engine_source.py init"


def create(directory: Path, root: Path | None = None) -> str:
    """Make the working copy in `directory`, which must not exist; returns its commit id.

    It is built beside its place and moved there in one step, so an interrupted run leaves nothing half made.
    """
    directory = directory.expanduser().absolute()
    if os.path.lexists(directory):
        raise LabError(existing(directory))
    wanted = pinned(root).commit
    directory.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        commit, _ = commit_baseline(build_baseline(building, root))
        if commit != wanted:
            raise LabError(
                f"the baseline comes out as commit {commit}, but patches/baseline.json says {wanted}. If you edited "
                "src/nanoengine, run `python scripts/maintain/patches.py refresh`; otherwise unpack the lab again."
            )
        building.chmod(0o777 & ~current_umask())
        building.rename(directory)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return commit


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def existing(directory: Path) -> str:
    """What to say when there is already something in the working copy's place."""
    status = f"python scripts/e2e/engine_source.py status --dir {shlex.quote(str(directory))}"
    if (directory / ".git").exists() and (directory / PACKAGE).is_dir():
        return f"{directory} exists and is a working copy; nothing was changed. Go on in it; its state: `{status}`"
    return (
        f"{directory} exists and is not a working copy; nothing was changed. Give another place with --dir, or move "
        f"that directory away yourself, then type `{INIT}` again."
    )


@dataclass(frozen=True)
class WorkingCopy:
    """A learner's git repository that holds `nanoengine/`."""

    root: Path

    @classmethod
    def open(cls, directory: Path) -> WorkingCopy:
        """The working copy in `directory`; LabError says what is there instead."""
        root = directory.expanduser().resolve()
        if not root.is_dir():
            raise LabError(f"there is no working copy in {root}: the directory does not exist. Make it with `{INIT}`.")
        if (root / "nanovllm").is_dir():
            raise LabError(
                f"{root} is a clone of upstream; the patches are for the working copy. Make one with `{INIT}`."
            )
        if not (root / PACKAGE / "engine" / "scheduler.py").is_file():
            raise LabError(
                f"{root} holds no {PACKAGE}/ engine. Make a working copy with `{INIT}`, or give its directory."
            )
        top = git("rev-parse", "--show-toplevel", cwd=root)
        if top.returncode != 0 and "dubious ownership" in top.stderr:
            raise LabError(
                f"git refuses {root} because another user owns it: `git config --global --add safe.directory {root}`"
            )
        if top.returncode != 0 or Path(top.stdout.strip()).resolve() != root:
            raise LabError(
                f"{root} is not a git repository of its own, so edits could not be told apart. Nothing was changed. "
                f"Make a working copy elsewhere (`{INIT} --dir ...`) and copy your edits into it."
            )
        return cls(root)

    def head(self) -> str:
        done = git("rev-parse", "--verify", "--quiet", "HEAD", cwd=self.root)
        return done.stdout.strip()

    def branch(self) -> str:
        done = git("symbolic-ref", "--quiet", "--short", "HEAD", cwd=self.root)
        return done.stdout.strip() or "(detached)"

    def has_commit(self, commit: str) -> bool:
        return git("cat-file", "-e", f"{commit}^{{commit}}", cwd=self.root).returncode == 0

    def diff(self, *files: str) -> str:
        """What the work tree changed since HEAD in these files."""
        return git("diff", "--no-ext-diff", "HEAD", "--", *files, cwd=self.root).stdout or "(none)"

    def extract(self, commit: str, dest: Path) -> Path:
        """Write the engine of `commit` under `dest` from the object store; the work tree is not read or touched."""
        names = git_output("ls-tree", "-r", "-z", "--name-only", commit, "--", f"{PACKAGE}/", cwd=self.root).split("\0")
        for name in filter(None, names):
            target = dest / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(git_output("cat-file", "blob", f"{commit}:{name}", cwd=self.root), "utf-8", newline="")
        return dest
