"""List and execute the commands of the manual (docs/commands; format in docs/commands/README.md).

\b
python scripts/maintain/commands.py list
python scripts/maintain/commands.py run --tier cpu
python scripts/maintain/commands.py run --tier cpu --only 5-2-requests-and-kv --workdir /tmp/rehearsal
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click

from nanolab.bundle import rehearsal
from nanolab.evidence import conclude, repo_root
from nanolab.manual import commands, runner
from nanolab.manual.commands import Section, Tier
from nanolab.verdicts import Verdict


@click.group(help=__doc__)
def main() -> None: ...


@main.command("list")
@click.option("--tier", type=click.Choice([t.value for t in Tier]), default=None, help="Only this tier.")
def list_command(tier: str | None) -> None:
    """Every section: where it runs, what it should exit with, the blocks it makes, why it is not run."""
    for section in commands.load(repo_root()):
        if tier in (None, section.tier):
            click.echo(_line(section))


def _line(section: Section) -> str:
    facts = [f"expect={section.expect}"] if section.expect else []
    facts += [f"block={','.join(section.blocks)}"] if section.blocks else []
    facts += [f"needs={','.join(section.needs)}"] if section.needs else []
    facts += ["server"] if section.background else []
    facts += [f"reason: {section.reason}"] if section.reason else []
    return f"{section.tier:4} {section.ref:44} {'  '.join(facts)}".rstrip()


@main.command("run")
@click.option("--tier", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True)
@click.option("--only", multiple=True, metavar="FILE[:SECTION]", help="Only this file or section, with what it needs.")
@click.option("--not-rehearsed", is_flag=True, help="Without the files that `bundle.py rehearse` follows.")
@click.option(
    "--workdir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Where the scratch copy and the logs go; must be new or empty. Default: a temporary directory, kept only "
    "when a section fails.",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=None,
    help="A model directory to link into the copy instead of making the tiny teaching model.",
)
def run_command(
    tier: str, only: tuple[str, ...], not_rehearsed: bool, workdir: Path | None, model: Path | None
) -> None:
    """Execute every section of a tier, in order, in a scratch copy of the tree."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, so that no section's server is left behind
    root = repo_root()
    sections = commands.load(root)
    selected = runner.select(sections, Tier(tier), only, rehearsal.PATH if not_rehearsed else ())
    if not selected:
        raise click.UsageError(f"no section of tier {tier} matches; `commands.py list` shows them all")
    directory = workdir or Path(tempfile.mkdtemp(prefix="nanolab-commands-"))
    scratch = runner.prepare(root, directory, model)
    failures = 0
    for number, outcome in enumerate(runner.run(scratch, selected, sections), 1):
        failures += bool(outcome.problem)
        _report(outcome, number, len(selected))
    click.echo(f"{len(selected)} sections: {len(selected) - failures} ok, {failures} failed")
    if workdir is None and not failures:
        shutil.rmtree(directory)
    else:
        click.echo(f"scratch copy and logs: {directory}")
    conclude(Verdict.FAIL if failures else Verdict.PASS)


def _report(outcome: runner.Outcome, number: int, total: int) -> None:
    verdict = "FAIL" if outcome.problem else "ok"
    click.echo(f"[{number:3}/{total}] {outcome.section.ref:44} {outcome.seconds:6.1f} s  {verdict}")
    if outcome.problem:
        click.echo(f"  {outcome.problem}")
        for line in runner.tail(outcome.log).splitlines():
            click.echo(f"  | {line}")


if __name__ == "__main__":
    main()
