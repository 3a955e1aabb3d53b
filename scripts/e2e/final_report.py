"""Make the note templates, or the final report from whatever evidence exists.

python scripts/e2e/final_report.py --root "$LAB_ROOT" --init-notes
python scripts/e2e/final_report.py --root "$LAB_ROOT"
"""

from __future__ import annotations

from pathlib import Path

import click

from nanolab import final_report
from nanolab.cli import out_option
from nanolab.evidence import Recording, check_writable, repo_root, write_atomic
from nanolab.verdicts import EvidenceType, Verdict


@click.command(help=__doc__)
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=repo_root,
    help="The lab's directory (LAB_ROOT); notes/ and runs/ lie in it. Default: this one.",
)
@click.option("--init-notes", is_flag=True, help="Make the missing note templates; an existing note is kept.")
@out_option
def main(root: Path, init_notes: bool, out: Path | None) -> None:
    with Recording(
        "note-templates" if init_notes else "final-report",
        title_en="Note templates" if init_notes else "Final report",
        title_zh="笔记模板" if init_notes else "终版报告",
        out=out,
        sources=[final_report],
    ) as rec:
        rec.result.update(_make_notes(root) if init_notes else _make_report(root))
        rec.finish(Verdict.COLLECTED, EvidenceType.STATIC)


def _make_notes(root: Path) -> dict[str, object]:
    made, kept = final_report.init_notes(root / "notes")
    for path in made:
        click.echo(f"made  notes/{path.name}")
    for path in kept:
        click.echo(f"kept  notes/{path.name} (exists, not touched)")
    return {"made": [path.name for path in made], "kept": [path.name for path in kept]}


def _make_report(root: Path) -> dict[str, object]:
    target = check_writable(root / "runs" / "final-report.md")
    collection = final_report.collect(root)
    write_atomic(target, final_report.render(root, collection).encode())
    waiting = [item.id for item, _ in final_report.pending(collection)]
    settled = sorted(name for name, claim in collection.claims.items() if claim.settled)
    click.echo(f"runs/final-report.md: {len(settled)} conclusions, {len(waiting)} pending")
    return {"conclusions": settled, "pending": waiting, "unusable": sorted(collection.unusable)}


if __name__ == "__main__":
    main()
