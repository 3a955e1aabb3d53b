"""The working copy's commit is the same whatever the machine's git, home and umask say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanolab.evidence import repo_root
from nanolab.patches import BRANCH, WorkingCopy, create, pinned
from nanolab.patches.git import git

HOSTILE_CONFIG = """\
[core]
    autocrlf = true
    safecrlf = true
    eol = crlf
    fileMode = false
    hooksPath = {hooks}
    excludesFile = {excludes}
    attributesFile = {attributes}
[user]
    name = Somebody Else
    email = somebody@else.invalid
[commit]
    gpgsign = true
[gpg]
    program = /bin/false
[tag]
    gpgsign = true
[init]
    defaultBranch = trunk
    templateDir = {template}
    defaultObjectFormat = sha256
[i18n]
    commitEncoding = ISO-8859-1
[apply]
    whitespace = fix
    ignoreWhitespace = change
[diff]
    noprefix = true
    external = /bin/false
[core "x"]
"""


def hostile_home(tmp_path: Path) -> Path:
    home = tmp_path / "home with spaces 家"
    for name in ("hooks", "template/hooks"):
        directory = home / name
        directory.mkdir(parents=True)
        for hook in ("pre-commit", "commit-msg", "post-checkout"):
            (directory / hook).write_text("#!/bin/sh\nexit 1\n")
            (directory / hook).chmod(0o755)
    (home / "excludes").write_text("*.py\npyproject.toml\n")
    (home / "attributes").write_text("* text=auto eol=crlf\n*.py filter=broken\n")
    config = HOSTILE_CONFIG.format(
        hooks=home / "hooks", excludes=home / "excludes", attributes=home / "attributes", template=home / "template"
    )
    (home / ".gitconfig").write_text(config)
    return home


def init(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`engine_source.py init` in a process of its own."""
    script = repo_root() / "scripts" / "e2e" / "engine_source.py"
    return subprocess.run(
        [sys.executable, str(script), "init", "--dir", str(directory)],
        env={**os.environ, "PYTHONPATH": str(repo_root() / "src"), **environment},
        capture_output=True, text=True, check=False, cwd=directory.parent,
    )  # fmt: skip


def test_the_id_does_not_depend_on_the_machine(tmp_path: Path) -> None:
    home = hostile_home(tmp_path)
    (tmp_path / "inner").mkdir()
    assert git("init", "-q", cwd=tmp_path / "inner").returncode == 0  # the working copy lies inside another repository
    done = init(
        tmp_path / "inner" / "engine", HOME=str(home), XDG_CONFIG_HOME=str(home), LANG="tr_TR.UTF-8", TZ="Asia/Kolkata",
        GIT_AUTHOR_NAME="Nobody", GIT_AUTHOR_DATE="2001-01-01T00:00:00", GIT_COMMITTER_EMAIL="x@y.invalid",
        GIT_DIR=str(tmp_path / "elsewhere"), GIT_INDEX_FILE=str(tmp_path / "index"), GIT_DEFAULT_HASH="sha256",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "PASS"
    copy = WorkingCopy.open(tmp_path / "inner" / "engine")
    assert copy.head() == pinned().commit
    assert copy.branch() == BRANCH == "lab/walkthrough"
    assert not (tmp_path / "elsewhere").exists() and not (tmp_path / "index").exists()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_umask_changes_nothing_but_permissions(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        commit = create(tmp_path / "engine")
    finally:
        os.umask(before)
    assert commit == pinned().commit
    assert (tmp_path / "engine").stat().st_mode & 0o777 == 0o777 & ~umask
    assert git("status", "--porcelain", cwd=tmp_path / "engine").stdout == ""


def test_the_working_copy_is_clean_small_and_installable(tmp_path: Path) -> None:
    create(tmp_path / "engine")
    root = tmp_path / "engine"
    assert sorted(path.name for path in root.iterdir()) == [".git", ".gitignore", "nanoengine", "pyproject.toml"]
    assert git("log", "--format=%an|%ae|%ad|%cn|%cd|%P", "--date=iso-strict", cwd=root).stdout.strip() == (
        "nanolab|nanolab@localhost.invalid|2026-01-01T00:00:00+00:00|nanolab|2026-01-01T00:00:00+00:00|"
    )
    assert git("fsck", "--strict", cwd=root).returncode == 0
    (root / "nanoengine" / "__pycache__").mkdir()
    (root / "nanoengine" / "__pycache__" / "config.pyc").write_bytes(b"x")
    (root / "nanoengine.egg-info").mkdir()
    (root / "nanoengine.egg-info" / "PKG-INFO").write_text("x")
    assert git("status", "--porcelain", cwd=root).stdout == "", "running and installing must not dirty the work tree"


def test_what_the_working_copy_says_about_importing_it_works(tmp_path: Path) -> None:
    """The lab is installed here, with the bundled engine on its path; PYTHONPATH comes before it."""
    root = tmp_path / "engine"
    create(root)
    told = (root / "pyproject.toml").read_text("utf-8")
    assert "PYTHONPATH" in told
    assert "pip install -e" not in told
    for path, expected in ((str(root), root), ("", repo_root() / "src")):
        command = [sys.executable, "-c", "import nanoengine; print(nanoengine.__file__)"]
        environment = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert Path(done.stdout.strip()).is_relative_to(expected)


def test_env_sh_says_the_same_commit() -> None:
    command = 'set -eu; source env.sh; printf %s "$NANO_COMMIT"'
    done = subprocess.run(["bash", "-c", command], cwd=repo_root(), capture_output=True, text=True, check=True)
    assert done.stdout == pinned().commit
    assert len(done.stdout) == 40
