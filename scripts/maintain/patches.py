"""Keep the patch stack in step with src/nanoengine.

python scripts/maintain/patches.py check                  # baseline + series == bundled, in every order
python scripts/maintain/patches.py refresh                # after an edit of src/nanoengine
python scripts/maintain/patches.py baseline --dir DIR     # the baseline's files, to read or to edit
python scripts/maintain/patches.py refresh --baseline DIR # after an edit of the baseline itself
"""

from __future__ import annotations

from pathlib import Path

import click

from nanolab.errors import LabError
from nanolab.evidence import conclude
from nanolab.patches import build_baseline
from nanolab.patches import refresh as stack
from nanolab.verdicts import Verdict


@click.group(help=__doc__)
def main() -> None: ...


@main.command()
def check() -> None:
    """Prove the stack: bytes, commit id, and every patch on and off every subset of the others."""
    wrong = stack.problems()
    for line in wrong:
        click.echo(f"BAD  {line}")
    if wrong:
        click.echo("After an edit of src/nanoengine: python scripts/maintain/patches.py refresh")
    conclude(Verdict.FAIL if wrong else Verdict.PASS)


@main.command()
@click.option("--baseline", type=click.Path(path_type=Path, exists=True, file_okay=False), help="An edited baseline.")
def refresh(baseline: Path | None) -> None:
    """Rebuild baseline and patches for src/nanoengine as it is now; writes nothing unless the result proves itself."""
    done = stack.refresh(baseline_edits=baseline)
    for note in done.notes:
        click.echo(f"note: {note}")
    click.echo("\n".join(f"rewritten patches/{name}" for name in done.rewritten) or "nothing to rewrite")
    click.echo(f"baseline commit {done.commit}")
    conclude(Verdict.PASS)


@main.command()
@click.option("--dir", "directory", type=click.Path(path_type=Path), required=True, help="A new directory.")
def baseline(directory: Path) -> None:
    """Write the baseline's files to a new directory (no repository)."""
    if directory.exists():
        raise LabError(f"{directory} exists; give a new directory")
    click.echo(f"baseline in {build_baseline(directory)}")


if __name__ == "__main__":
    main()
