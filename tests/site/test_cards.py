"""The command on a card: a line that a reader can copy and run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from nanolab.evidence import repo_root
from nanolab.evidence.scrub import shell_line
from nanolab.manual import programs

ROOT = repo_root()
BLOCKS = sorted((ROOT / "docs" / "evidence").glob("*.json"))


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["python", "x.py", "--out", "runs/x.json"], "python x.py --out runs/x.json"),
        (["python", "x.py", "--out", "$TMPDIR/a/b/x.json"], "python x.py --out runs/x.json"),
        (["python", "x.py", "--out", "$HOME/out/x.json"], "python x.py --out runs/x.json"),
        (["python", "x.py", "--inputs", "$TMPDIR/a/x,$TMPDIR/a/y"], "python x.py --inputs runs/x,runs/y"),
        (["python", "x.py", "--source", "$TMPDIR/lab-1/engine"], "python x.py --source engine"),
        (["python", "x.py", "--model", "$MODEL_DIR"], 'python x.py --model "$MODEL_DIR"'),
        (["python", "x.py", "it's $5"], """python x.py 'it'"'"'s $5'"""),
    ],
)  # fmt: skip
def test_a_readers_line(command: list[str], line: str) -> None:
    assert shell_line(command) == line


def options(command: click.Command) -> set[str]:
    """The options of a program and of its subcommands."""
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(command, click.Group):
        found = found.union(*map(options, command.commands.values()))
    return found


@pytest.mark.parametrize("path", BLOCKS, ids=lambda path: path.stem)
def test_the_command_of_a_recorded_block_can_be_typed(path: Path) -> None:
    line = shell_line(json.loads(path.read_text(encoding="utf-8"))["command"])
    unquoted = re.sub(r"'[^']*'", "", line)
    assert set(re.findall(r"\$\w+", line)) == set(re.findall(r"\$\w+", unquoted)) <= {"$MODEL_DIR", "$NANO_DIR"}
    interpreter, program, *words = shlex.split(line)
    assert interpreter in {"python", "python3"}
    known = options(programs.load(ROOT, program))
    assert [word for word in words if word.startswith("--") and word.partition("=")[0] not in known] == []
