"""Runs git so that nothing around it decides the outcome: no inherited repository, no pager, no locale.

`isolated=True` also shuts out the user's and the system's configuration; it is used where bytes or ids must be the
same everywhere. On a learner's repository the user's configuration stays (it may hold safe.directory), and the
settings that could change bytes are overridden: line endings, whitespace repair, attributes.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from nanolab.errors import LabError

NEUTRAL = (
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.quotePath=false",
    f"core.attributesFile={os.devnull}",
    "apply.whitespace=nowarn",
    "apply.ignoreWhitespace=no",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "color.ui=false",
)


def git(
    *args: str, cwd: Path, isolated: bool = False, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The finished process, whatever its exit code; LabError if git is not there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_ATTR_NOSYSTEM": "1"} | (
        env or {}
    )
    if isolated:
        environment |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_DEFAULT_HASH": "sha1"}
    settings = [part for setting in NEUTRAL for part in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", *settings, *args],
            cwd=cwd, env=environment, input=stdin, capture_output=True, text=True, encoding="utf-8", errors="replace",
            check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise LabError(
            "git is not installed, or not on PATH: the working copy is a git repository and patches are applied with "
            "git. Install it (for example `apt-get install git`), then type the same command again."
        ) from error


def git_output(*args: str, cwd: Path, isolated: bool = False, stdin: str | None = None) -> str:
    """What git printed; LabError with git's own words if it failed."""
    done = git(*args, cwd=cwd, isolated=isolated, stdin=stdin)
    if done.returncode != 0:
        raise LabError(f"git {args[0]} failed in {cwd}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def apply(diff: str, tree: Path, *, reverse: bool = False, check: bool = False) -> subprocess.CompletedProcess[str]:
    """`git apply` of `diff` to the files under `tree`: all of its hunks or none.

    `tree` is taken as the root of the paths even when it lies inside another repository: there, git would skip
    every file without a word.
    """
    options = ["--verbose", *(["--reverse"] if reverse else []), *(["--check"] if check else [])]
    ceiling = {"GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}
    return git("apply", *options, "-", cwd=tree.resolve(), stdin=diff, env=ceiling)


def unified_diff(before: Path, after: Path) -> str:
    """The difference of two trees as `git diff` prints it, with a/ and b/ paths and no blob ids."""
    common = Path(os.path.commonpath([before.resolve(), after.resolve()]))
    names = [os.path.relpath(tree.resolve(), common) for tree in (before, after)]
    done = git("diff", "--no-index", "--no-renames", "--unified=3", *names, cwd=common, isolated=True)
    lines = []
    for line in done.stdout.splitlines(keepends=True):
        if line.startswith("index "):
            continue
        if line.startswith(("diff --git ", "--- ", "+++ ")):
            line = line.replace(f" a/{names[0]}/", " a/").replace(f" b/{names[1]}/", " b/")
            line = line.replace(f" a/{names[1]}/", " a/").replace(f" b/{names[0]}/", " b/")
        lines.append(line)
    return "".join(lines)
