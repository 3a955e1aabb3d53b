"""The main job in one command: run the manual's CPU labs on the real engine, keep their blocks, build the manual.

Every CPU section of docs/commands runs in a scratch copy with the tiny teaching model, exactly as the pages print it.
The result blocks are copied to runs/ (and promoted into docs/evidence by a maintainer, `evidence.py promote`); then
both languages of the manual are built and its address is printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

from nanolab.evidence import conclude, load, repo_root
from nanolab.evidence.promote import block_paths
from nanolab.manual import commands, runner
from nanolab.manual.commands import Tier
from nanolab.verdicts import Verdict

# What a first visit runs; the other chapters are run by `make commands` and `make test`.
FIRST_VISIT = ("0-start", "5-1-setup", "5-2-requests-and-kv", "b-1-mathematics", "b-2-logs")


def run_labs(root: Path, work: Path, only: tuple[str, ...]) -> tuple[Path, int]:
    """Run the CPU sections; returns the scratch tree and how many failed."""
    sections = commands.load(root)
    known = {section.file for section in sections}
    selected = runner.select(sections, Tier.CPU, [name for name in only if name in known])
    scratch = runner.prepare(root, work, None)
    failures = 0
    for number, outcome in enumerate(runner.run(scratch, selected, sections), 1):
        verdict = "FAIL" if outcome.problem else "ok"
        click.echo(f"[{number:3}/{len(selected)}] {outcome.section.ref:44} {outcome.seconds:6.1f} s  {verdict}")
        if outcome.problem:
            failures += 1
            click.echo(f"  {outcome.problem}\n{runner.tail(outcome.log)}")
    return scratch.tree, failures


def keep_blocks(runs: Path, target: Path) -> None:
    """Copy the labs' result blocks to runs/ and print one line for each."""
    target.mkdir(exist_ok=True)
    for path in block_paths(runs):
        shutil.copy2(path, target / path.name)
        block = load(path)
        click.echo(f"  {block['check']:9} {block['evidence']:14} {block['id']:28} {block['title']['en']}")


def build_site(root: Path) -> bool:
    mkdocs = Path(sys.executable).with_name("mkdocs")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    for config in ("mkdocs.yml", "mkdocs.en.yml"):
        click.echo(f"  mkdocs build --strict -f {config}")
        command = [str(mkdocs), "build", "--strict", "-f", config]
        if subprocess.run(command, cwd=root, env=environment, check=False).returncode:
            return False
    return True


@click.command(help=__doc__)
@click.option("--all", "everything", is_flag=True, help="Run every CPU section, not only a first visit's.")
def main(everything: bool) -> None:
    root = repo_root()
    work = root / ".cache" / "lab"
    shutil.rmtree(work, ignore_errors=True)
    click.echo("== 1/3 the manual's CPU labs, on the real engine and the tiny teaching model")
    tree, failures = run_labs(root, work, () if everything else FIRST_VISIT)
    click.echo("== 2/3 result blocks, kept in runs/")
    keep_blocks(tree / "runs", root / "runs")
    click.echo("== 3/3 the manual, in both languages")
    built = build_site(root)
    if built:
        click.echo(f"\nThe manual:  {(root / 'site' / 'index.html').as_uri()}  (中文)")
        click.echo(f"             {(root / 'site' / 'en' / 'index.html').as_uri()}  (English)")
        click.echo("or serve it: python -m http.server --bind 127.0.0.1 --directory site 8000")
    conclude(Verdict.PASS if built and not failures else Verdict.FAIL)


if __name__ == "__main__":
    main()
