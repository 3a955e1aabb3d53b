"""Pack your evidence: notes, results and the code that made them, without models, environments or engine copies.

python scripts/e2e/evidence_archive.py
"""

from __future__ import annotations

from pathlib import Path

import click

from nanolab.bundle import learning
from nanolab.evidence import check_writable, conclude, repo_root
from nanolab.verdicts import Verdict


@click.command(help=__doc__)
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=repo_root,
    help="The lab's directory (LAB_ROOT). Default: this one.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Default: {learning.NAME} in the lab's directory.",
)
def main(root: Path, out: Path | None) -> None:
    target = check_writable(out or root / learning.NAME)
    packed = learning.pack(root, target)
    for line in packed.left_out:
        click.echo(f"left out  {line}")
    results = sum(name.startswith("runs/") for name in packed.files)
    notes = sum(name.startswith("notes/") for name in packed.files)
    size = target.stat().st_size / 2**20
    click.echo(f"{target.name}: {len(packed.files)} files, {results} in runs/, {notes} in notes/, {size:.1f} MiB")
    conclude(Verdict.COLLECTED)


if __name__ == "__main__":
    main()
