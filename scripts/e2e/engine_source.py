"""The engine that you read and change: make the working copy, see where it stands, or check a clone of upstream.

python scripts/e2e/engine_source.py init                    # $NANO_DIR (engine/): the baseline, as a git repository
python scripts/e2e/engine_source.py status
python scripts/e2e/engine_source.py upstream --dir DIR      # nano-vLLM at the pin: how to get it, or whether it is it
"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from nanolab import source_walk, sources
from nanolab.errors import LabError, MissingPrerequisite
from nanolab.evidence import conclude, repo_root
from nanolab.patches import BRANCH, State, WorkingCopy, create, examine_all, pinned
from nanolab.verdicts import Verdict

UPSTREAM_URL = "https://github.com/GeeeekExplorer/nano-vllm.git"

directory_option = click.option(
    "--dir", "directory", type=click.Path(path_type=Path), envvar="NANO_DIR", default=None, metavar="DIR",
    help="The working copy. Default: $NANO_DIR, else engine/ in the lab's root.",
)  # fmt: skip


def chosen(directory: Path | None) -> Path:
    return directory or repo_root() / "engine"


@click.group(help=__doc__)
def main() -> None: ...


@main.command()
@directory_option
def init(directory: Path | None) -> None:
    """Make the working copy at the baseline; an existing directory is never touched."""
    place = chosen(directory)
    commit = create(place)
    click.echo(f"working copy   {place}\ncommit         {commit}\nbranch         {BRANCH}")
    click.echo(f"next           python scripts/e2e/source_walk.py verify --source {shlex.quote(str(place))}")
    conclude(Verdict.PASS)


@main.command()
@directory_option
def status(directory: Path | None) -> None:
    """Say where the working copy stands: commit, branch, patches, your own edits."""
    copy = WorkingCopy.open(chosen(directory))
    wanted, head = pinned().commit, copy.head()
    click.echo(f"working copy   {copy.root}\nbranch         {copy.branch()}\nHEAD           {head or '(no commit)'}")
    click.echo(f"baseline       {wanted}{baseline_note(copy, head, wanted)}")
    show_standing(copy)
    conclude(Verdict.COLLECTED)


def baseline_note(copy: WorkingCopy, head: str, wanted: str) -> str:
    if head == wanted:
        return "  (HEAD is the baseline)"
    if copy.has_commit(wanted):
        return "  (your branch has commits of its own)"
    return "  (not in this repository: it was made by another version of the lab)"


def show_standing(copy: WorkingCopy) -> None:
    standing = examine_all(copy.root)
    for state in standing.patches:
        click.echo(f"patch          {state.patch.name:28} {state.summary()}")
    for edit in standing.own_edits:
        click.echo(f"your edit      {edit}")
    if not standing.own_edits:
        click.echo("your edits     none beside the patches")
    if any(state.state is State.CONFLICT for state in standing.patches):
        click.echo("A patch in conflict: python scripts/e2e/patch.py show NAME, and `git diff` in the working copy.")


@main.command()
@click.option("--dir", "directory", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The clone.")
def upstream(directory: Path) -> None:
    """Print the commands that clone nano-vLLM at the pin, and verify a clone that is there."""
    pin, place = source_walk.UPSTREAM_PIN, shlex.quote(str(directory))
    click.echo(f"git clone {UPSTREAM_URL} {place}\ngit -C {place} checkout --detach {pin}")
    click.echo(f"git -C {place} switch -c lab/upstream")
    if not directory.exists():
        raise MissingPrerequisite(f"{directory} does not exist yet; type the three commands above, then this one again")
    source = sources.resolve(directory)
    if source.kind != "upstream":
        raise LabError(f"{directory} holds {source.package}, not a clone of nano-vLLM; give another --dir")
    changes = source_walk.changes(source)
    for change in changes:
        click.echo(f"differs        {change}")
    conclude(Verdict.FAIL if changes else Verdict.PASS)


if __name__ == "__main__":
    main()
