"""The manual's figures: draw all of them into docs/figures, or check that the committed files are what the code draws.

\b
python scripts/maintain/figures.py build          after changing src/nanolab/figures or recording bench-engines
python scripts/maintain/figures.py check          what CI runs; writes nothing
python scripts/maintain/figures.py requests LOG   after recording the block prefill-first-gpu, with its log
"""

from pathlib import Path

import click

from nanolab.errors import LabError
from nanolab.evidence import conclude, load, repo_root
from nanolab.figures import FIGURES, LANGUAGES, draw, file_name
from nanolab.figures.canvas import Canvas
from nanolab.figures.engines import beside_upstream
from nanolab.figures.requests import MARK_DIGITS, read_run, request_timeline
from nanolab.serving.eventlog import read_log
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
    """File name -> contents: the drawn figures, and the bars of the block that is recorded now."""
    drawn = {(figure_id, language): draw(figure_id, language) for figure_id in FIGURES for language in LANGUAGES}
    drawn |= {("engines", language): beside_upstream(load(ENGINES_BLOCK), language) for language in LANGUAGES}
    return {file_name(*key): legible(canvas, *key) for key, canvas in drawn.items()}


def legible(canvas: Canvas, figure_id: str, language: str) -> str:
    """The picture's SVG, or an error if two of its texts collide."""
    if pairs := canvas.overlaps():
        raise click.ClickException(f"figure {figure_id}, {language}: texts collide: {pairs}")
    return canvas.svg()


# Pictures of a run: the block beside them in the page says which run.
RECORDED = ("fig-profile", "fig-requests")
ENGINES_BLOCK = repo_root() / "docs" / "evidence" / "bench-engines.json"
REQUESTS_BLOCK = repo_root() / "docs" / "evidence" / "prefill-first-gpu.json"


def recorded_mark() -> str:
    """How the request timeline names the log of the block that stands beside it."""
    digest: str = load(REQUESTS_BLOCK)["result"]["measurements"][0]["log_sha256"]
    return digest[:MARK_DIGITS]


def other_runs(directory: Path) -> list[str]:
    """Request timelines that are missing or were drawn from another run than the block beside them reports."""
    mark, faults = recorded_mark(), []
    for name in (file_name("requests", language) for language in LANGUAGES):
        path = directory / name
        if not path.exists() or mark not in path.read_text(encoding="utf-8"):
            faults.append(f"not drawn from log {mark} of {REQUESTS_BLOCK.stem}: {name}; run: figures.py requests LOG")
    return faults


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
@click.argument("log", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@directory_option
def requests(log: Path, directory: Path) -> None:
    """Draw the request timeline of page 5.3 from the log that the block prefill-first-gpu was made of."""
    run = read_run(read_log(log))
    if run.mark != recorded_mark():
        raise LabError(
            f"{log} has sha256 {run.mark}..., the block {REQUESTS_BLOCK.name} was made of log {recorded_mark()}...; "
            "give that log, or promote the block of this one first"
        )
    for language in LANGUAGES:
        canvas = Canvas("requests", language)
        request_timeline(canvas, run)
        svg = legible(canvas, "requests", language)
        (directory / file_name("requests", language)).write_text(svg, encoding="utf-8", newline="\n")
    click.echo(f"{len(LANGUAGES)} files written")
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
    if directory == DIRECTORY:
        faults += other_runs(directory)
    for fault in faults:
        click.echo(fault)
    if faults:
        click.echo("Run: python scripts/maintain/figures.py build, look at the figures, and commit them.")
    conclude(Verdict.FAIL if faults else Verdict.PASS)


if __name__ == "__main__":
    main()
