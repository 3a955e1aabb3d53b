"""The manual's figures: draw all of them into docs/figures, or check that the committed files are what the code draws.

python scripts/maintain/figures.py build     after changing src/nanolab/figures
python scripts/maintain/figures.py check     what CI runs; writes nothing
"""

from pathlib import Path

import click

from nanolab.evidence import conclude, repo_root
from nanolab.figures import FIGURES, LANGUAGES, draw, file_name
from nanolab.verdicts import Verdict

DIRECTORY = repo_root() / "docs" / "figures"

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=DIRECTORY,
    help="Where the figures lie. Default: docs/figures.",
)


def drawings() -> dict[str, str]:
    """File name -> contents, or an error if two texts of a figure collide."""
    files = {}
    for figure_id in FIGURES:
        for language in LANGUAGES:
            canvas = draw(figure_id, language)
            if pairs := canvas.overlaps():
                raise click.ClickException(f"figure {figure_id}, {language}: texts collide: {pairs}")
            files[file_name(figure_id, language)] = canvas.svg()
    return files


# Pictures that a run made, not a drawing here: the block beside them in the page says which run.
RECORDED = ("fig-profile",)


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@directory_option
def build(directory: Path) -> None:
    """Write every figure in both languages."""
    directory.mkdir(parents=True, exist_ok=True)
    files = drawings()
    for name, svg in files.items():
        (directory / name).write_text(svg, encoding="utf-8", newline="\n")
    click.echo(f"{len(files)} files written")
    conclude(Verdict.PASS)


@main.command()
@directory_option
def check(directory: Path) -> None:
    """Fail when a committed figure is missing, differs from its drawing, or has no drawing."""
    files = drawings()
    recorded = tuple(f"{name}." for name in RECORDED)
    present = {path.name for path in directory.glob("*.svg") if not path.name.startswith(recorded)}
    faults = [f"missing: {name}" for name in sorted(files.keys() - present)]
    faults += [f"no drawing makes it: {name}" for name in sorted(present - files.keys())]
    faults += [
        f"differs from its drawing: {name}"
        for name in sorted(files.keys() & present)
        if (directory / name).read_bytes() != files[name].encode()
    ]
    for fault in faults:
        click.echo(fault)
    if faults:
        click.echo("Run: python scripts/maintain/figures.py build, look at the figures, and commit them.")
    conclude(Verdict.FAIL if faults else Verdict.PASS)


if __name__ == "__main__":
    main()
