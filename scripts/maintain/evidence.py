"""Keep the recorded result blocks of docs/evidence: promote new ones, re-run the CPU ones, list them.

python scripts/maintain/evidence.py promote runs/quick-A.json
python scripts/maintain/evidence.py verify
python scripts/maintain/evidence.py list
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from nanolab.errors import LabError
from nanolab.evidence import conclude, repo_root
from nanolab.evidence.promote import block_paths, evidence_dir, promote
from nanolab.evidence.provenance import is_stale
from nanolab.evidence.schema import load
from nanolab.evidence.verify import Outcome, Rerun, overall, verify
from nanolab.verdicts import Verdict

BLOCK_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group(help=__doc__)
def main() -> None: ...


@main.command("promote")
@click.argument("blocks", nargs=-1, required=True, type=BLOCK_FILE)
@click.option("--replace-weaker", is_flag=True, help="Let a weaker evidence type replace a stronger one.")
def promote_command(blocks: tuple[Path, ...], replace_weaker: bool) -> None:
    """Validate BLOCKS and put each in docs/evidence/ID.json, or say every reason why not."""
    refused = 0
    for path in blocks:
        try:
            target = promote(path, replace_weaker=replace_weaker)
        except LabError as error:
            refused += 1
            click.echo(error.format_message(), err=True)
        else:
            click.echo(f"promoted {target.relative_to(repo_root())}")
    conclude(Verdict.FAIL if refused else Verdict.PASS)


@main.command("verify")
@click.argument("blocks", nargs=-1, type=BLOCK_FILE)
def verify_command(blocks: tuple[Path, ...]) -> None:
    """Re-run the CPU blocks (all, or BLOCKS) and compare every deterministic fact."""
    root = repo_root()
    reruns = []
    with tempfile.TemporaryDirectory(prefix="nanolab-verify-") as scratch:
        for rerun in verify(blocks or block_paths(evidence_dir(root)), root, Path(scratch)):
            reruns.append(rerun)
            _print_rerun(rerun)
    counts = ", ".join(f"{sum(r.outcome is o for r in reruns)} {o.value.lower()}" for o in Outcome)
    click.echo(f"{len(reruns)} blocks: {counts}")
    conclude(overall(reruns))


def _print_rerun(rerun: Rerun) -> None:
    click.echo(f"{rerun.outcome.value:9}  {rerun.id}")
    for line in rerun.lines:
        click.echo(f"           {line}")


@main.command("list")
@click.argument("directory", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
def list_command(directory: Path | None) -> None:
    """Show each block of DIRECTORY (default docs/evidence): id, verdict, type, device, date, stale."""
    rows = [("id", "verdict", "type", "device", "date", "stale")]
    invalid = 0
    for path in block_paths(directory or evidence_dir()):
        try:
            block = load(path)
        except LabError as error:
            invalid += 1
            click.echo(error.format_message(), err=True)
            continue
        stale = "stale" if is_stale(block) else "no"
        device, date = block["device"]["name"], block["started_at"][:10]
        rows.append((block["id"], block["check"], block["evidence"], device, date, stale))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    conclude(Verdict.FAIL if invalid else Verdict.COLLECTED)


if __name__ == "__main__":
    main()
