"""The command reference reads programs as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanolab.evidence import repo_root
from nanolab.manual import programs
from nanolab.manual.errors import ManualError
from nanolab.manual.texts import Language

GROUP = '''
import click

@click.group()
def main(): ...

@main.command("walk")
@click.option("--case", type=click.Choice(["A", "B"]), required=True, help="Which <case>.")
@click.option("--budget", default=512, show_default=True, help="Tokens a step.")
@click.argument("place")
def walk(case, budget, place):
    """Walk a case.

    More."""
'''


def put(root: Path, text: str) -> str:
    (root / "p.py").write_text(text)
    return "p.py"


def test_a_group_shows_its_commands(tmp_path: Path) -> None:
    file = put(tmp_path, GROUP)
    html = programs.render(programs.load(tmp_path, file), file, Language.EN)
    assert "python p.py walk [OPTIONS] PLACE" in html
    assert "--case [A|B]" in html
    assert "Which &lt;case&gt;.  [required]" in html
    assert "[default: 512]" in html
    assert "Walk a case." in html
    assert "More" not in html


def test_a_script_without_a_main_is_not_run(tmp_path: Path) -> None:
    file = put(tmp_path, "raise SystemExit('it ran')\n")
    html = programs.render(programs.load(tmp_path, file), file, Language.ZH)
    assert "python p.py" in html
    assert "没有选项" in html


def test_a_script_for_another_environment_is_not_imported(tmp_path: Path) -> None:
    file = put(tmp_path, "import a_module_that_is_not_here\ndef main(): ...\n")
    assert programs.load(tmp_path, file) is None


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManualError, match="no program"):
        programs.load(tmp_path, "gone.py")
    with pytest.raises(ManualError, match="not a click command"):
        programs.load(tmp_path, put(tmp_path, "import functools\n@functools.cache\ndef main(): ...\n"))


@pytest.mark.parametrize("language", Language)
def test_the_reference_names_every_program(language: Language) -> None:
    assert programs.unlisted(repo_root(), language) == []


def test_a_program_that_is_left_out_is_noticed(tmp_path: Path) -> None:
    for file in ("scripts/e2e/listed.py", "scripts/practice/forgotten.py", "docs/en/commands.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    (tmp_path / "docs/en/commands.md").write_text('```program file="scripts/e2e/listed.py"\n```\nforgotten.py\n')
    assert programs.unlisted(tmp_path, Language.EN) == ["scripts/practice/forgotten.py"]
