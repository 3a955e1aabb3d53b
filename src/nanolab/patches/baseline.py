"""The engine before the series: its files, its commit, and the file that pins both (patches/baseline.json)."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from nanolab.errors import LabError
from nanolab.evidence import repo_root

from .git import apply, git_output
from .series import patches_dir, read_series

PACKAGE = "nanoengine"
BRANCH = "lab/walkthrough"
AUTHOR = "nanolab"
EMAIL = "nanolab@localhost.invalid"
EPOCH = 1767225600  # 2026-01-01T00:00:00Z
MESSAGE = """nanoengine before the patch series

The engine of the lab without step trace (01), graph fallback (02), fair scheduling (03) and replica isolation (04).
"""

PYPROJECT = """\
# The lab's programs need no install: they find this copy through NANO_DIR or --source. Your own script gets it with
#     PYTHONPATH="$NANO_DIR" python my_script.py
# An editable install would have no effect beside the lab's own, which brings the bundled nanoengine along.
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "nanoengine"
version = "0.1.0"
description = "The lab's engine, as the learner reads and changes it"
requires-python = ">=3.11"

[tool.setuptools.packages.find]
include = ["nanoengine*"]

[tool.setuptools.package-data]
nanoengine = ["py.typed"]
"""
GITIGNORE = "__pycache__/\n*.egg-info/\n/build/\n"


@dataclass(frozen=True)
class Pinned:
    """patches/baseline.json: which baseline, and which bundled engine, the patches were made for."""

    commit: str
    tree: str
    branch: str
    bundled_sha256: str


def pinned(root: Path | None = None) -> Pinned:
    path = patches_dir(root) / "baseline.json"
    try:
        return Pinned(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise LabError(
            f"{path} cannot be read ({error}); restore it with `git checkout -- patches/baseline.json`"
        ) from error


def write_pinned(found: Pinned, root: Path | None = None) -> bool:
    """Write baseline.json; False if it already says so."""
    path, text = patches_dir(root) / "baseline.json", json.dumps(asdict(found), indent=2) + "\n"
    if path.is_file() and path.read_text("utf-8") == text:
        return False
    path.write_text(text, "utf-8")
    return True


def bundled_root(root: Path | None = None) -> Path:
    return (root or repo_root()) / "src"


def engine_files(tree: Path) -> list[str]:
    """The files that make the engine, relative to `tree`: what lies beside them (caches, drafts) does not count."""
    package = tree / PACKAGE
    found = [path for path in package.rglob("*") if path.suffix == ".py" or path.name == "py.typed"]
    return sorted(path.relative_to(tree).as_posix() for path in found if path.is_file())


def engine_sha256(tree: Path) -> str:
    """One hash over names and contents of the engine's files (contents as git blob ids, so history can be asked)."""
    return listing_sha256({name: blob_id((tree / name).read_bytes()) for name in engine_files(tree)})


def listing_sha256(blobs: dict[str, str]) -> str:
    text = "".join(f"{name} {blobs[name]}\n" for name in sorted(blobs))
    return hashlib.sha256(text.encode()).hexdigest()


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def copy_engine(source: Path, dest: Path) -> None:
    """Copy the engine's files of `source` into `dest`, which may exist and be empty."""
    for name in engine_files(source):
        (dest / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, dest / name)


def build_baseline(dest: Path, root: Path | None = None) -> Path:
    """Fill `dest` (new or empty) with the baseline: nanoengine/, pyproject.toml, .gitignore; returns `dest`."""
    dest.mkdir(parents=True, exist_ok=True)
    copy_engine(bundled_root(root), dest)
    for patch in reversed(read_series(root)):
        done = apply(patch.diff, dest, reverse=True)
        if done.returncode != 0:
            raise LabError(
                f"{patch.path.name} does not reverse from the bundled engine ({first_line(done.stderr)}). If you edit "
                "src/nanoengine: `python scripts/maintain/patches.py refresh`. Otherwise unpack the lab again."
            )
    write_frame(dest)
    return dest


@cache
def baseline_tree(root: Path) -> Path:
    """A temporary tree, made once per process and removed at its end, whose `src/nanoengine` is the baseline."""
    tree = Path(tempfile.mkdtemp(prefix="nanolab-baseline-"))
    atexit.register(shutil.rmtree, tree, ignore_errors=True)
    build_baseline(tree / "src", root)
    return tree


def write_frame(dest: Path) -> None:
    """The files around the package that make the working copy installable and its status quiet."""
    (dest / "pyproject.toml").write_text(PYPROJECT, "utf-8", newline="\n")
    (dest / ".gitignore").write_text(GITIGNORE, "utf-8", newline="\n")


def first_line(text: str) -> str:
    """The line of git's complaint that says where."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for start in ("error: patch failed", "error"):
        for line in lines:
            if line.startswith(start):
                return line.removeprefix("error: ")
    return lines[0] if lines else "no reason given"


def commit_baseline(dest: Path) -> tuple[str, str]:
    """Turn a baseline directory into a git repository on its branch; returns (commit id, tree id).

    Built from objects, not with `git add` and `git commit`, so that line endings, file modes, signing, hooks, templates
    and identities of the machine have no say in the id.
    """
    isolated = {"cwd": dest, "isolated": True}
    git_output("init", "--quiet", "--template=", ".", **isolated)  # type: ignore[arg-type]
    git_output("symbolic-ref", "HEAD", f"refs/heads/{BRANCH}", **isolated)  # type: ignore[arg-type]
    names = [".gitignore", *engine_files(dest), "pyproject.toml"]
    stdin = "".join(f"{name}\n" for name in names)
    blobs = git_output(
        "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=stdin, cwd=dest, isolated=True
    ).split()
    entries = "".join(f"100644 {blob}\t{name}\n" for blob, name in zip(blobs, names, strict=True))
    git_output("update-index", "--add", "--index-info", stdin=entries, cwd=dest, isolated=True)
    tree = git_output("write-tree", cwd=dest, isolated=True).strip()
    commit = make_commit(dest, tree)
    git_output("update-ref", f"refs/heads/{BRANCH}", commit, cwd=dest, isolated=True)
    git_output("update-ref", "refs/tags/baseline", commit, cwd=dest, isolated=True)
    for name, value in LOCAL_CONFIG.items():
        git_output("config", name, value, cwd=dest, isolated=True)
    git_output("update-index", "-q", "--refresh", cwd=dest, isolated=True)
    return commit, tree


# So that the commands the learner types by hand act the same whatever the machine's git prefers.
LOCAL_CONFIG = {
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.attributesFile": os.devnull,
    "apply.whitespace": "warn",
    "apply.ignoreWhitespace": "no",
    "diff.noprefix": "false",
    "diff.mnemonicPrefix": "false",
}


def make_commit(dest: Path, tree: str) -> str:
    """A commit object with every field fixed, written as bytes."""
    who = f"{AUTHOR} <{EMAIL}> {EPOCH} +0000"
    text = f"tree {tree}\nauthor {who}\ncommitter {who}\n\n{MESSAGE}"
    return git_output("hash-object", "-t", "commit", "-w", "--stdin", stdin=text, cwd=dest, isolated=True).strip()
