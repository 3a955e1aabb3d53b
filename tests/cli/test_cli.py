"""The options that every script shares, and the exit codes of the error tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nanolab import cli
from nanolab.errors import LabError, MissingPrerequisite


@click.command()
@cli.source_option
@cli.model_option
@cli.out_option
def program(source: Path | None, model: Path, out: Path | None) -> None:
    click.echo(f"{source} {model} {out}")


def test_options_give_paths() -> None:
    result = CliRunner().invoke(program, ["--source", "engine", "--model", "models/tiny", "--out", "runs/x.json"])
    assert result.output.split() == ["engine", "models/tiny", "runs/x.json"]


def test_model_defaults_to_the_environment_and_source_and_out_to_none() -> None:
    result = CliRunner().invoke(program, [], env={"MODEL_DIR": "models/q"})
    assert result.output.split() == ["None", "models/q", "None"]


def test_no_model_is_a_usage_error_with_the_next_step() -> None:
    result = CliRunner().invoke(program, [], env={"MODEL_DIR": None})
    assert result.exit_code == 2
    assert "source env.sh" in result.stderr
    assert "make_model.py --preset tiny" in result.stderr


def test_help_needs_no_model() -> None:
    result = CliRunner().invoke(program, ["--help"], env={"MODEL_DIR": None})
    assert result.exit_code == 0
    assert "--source DIR" in result.stdout


@pytest.mark.parametrize(("error", "code", "last"), [(LabError, 2, ""), (MissingPrerequisite, 4, "PENDING")])
def test_errors_carry_their_exit_code(error: type[LabError], code: int, last: str) -> None:
    @click.command()
    def fails() -> None:
        raise error("7 tokens, at most 5")

    result = CliRunner().invoke(fails, [])
    assert result.exit_code == code
    assert result.stdout.strip() == last
    assert "7 tokens, at most 5" in result.stderr


def test_progress_yields_everything_and_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(cli.progress(range(3), "steps", total=3)) == [0, 1, 2]
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_announce_says_what_is_driven_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    cli.announce(engine="bundled", device="cpu", attention="torch")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "engine=bundled  device=cpu  attention=torch\n")


def test_importing_the_options_imports_no_torch() -> None:
    check = "import sys, nanolab.cli; sys.exit('torch' in sys.modules or 'nanoengine' in sys.modules)"
    source = Path(cli.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", check], env={"PYTHONPATH": str(source)}).returncode == 0
