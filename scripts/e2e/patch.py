"""The four patches on your working copy: where they stand, put one on, take one off.

python scripts/e2e/patch.py status
python scripts/e2e/patch.py show 01            # read it before you apply it
python scripts/e2e/patch.py apply 01
python scripts/e2e/patch.py revert 01
python scripts/e2e/patch.py verify             # baseline + exactly the applied patches, byte for byte?

It does what `git apply` does, after a look at every hunk. It refuses on a conflict, shows the lines, and never resets,
forces or overwrites; your own edits elsewhere stay.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from nanolab.errors import LabError
from nanolab.evidence import conclude, repo_root
from nanolab.patches import (
    PatchState,
    State,
    WorkingCopy,
    conflicting_hunks,
    examine,
    examine_all,
    find_patch,
    pinned,
    put,
)
from nanolab.verdicts import Verdict

repo_option = click.option(
    "--repo", type=click.Path(path_type=Path), envvar="NANO_DIR", default=None, metavar="DIR",
    help="The working copy. Default: $NANO_DIR, else engine/ in the lab's root.",
)  # fmt: skip
names_argument = click.argument("names", nargs=-1, required=True, metavar="PATCH...")


def opened(repo: Path | None) -> WorkingCopy:
    return WorkingCopy.open(repo or repo_root() / "engine")


@click.group(help=__doc__)
def main() -> None: ...


@main.command()
@repo_option
def status(repo: Path | None) -> None:
    """One line per patch, then the files you changed yourself."""
    standing = examine_all(opened(repo).root)
    for state in standing.patches:
        click.echo(f"{state.patch.name:28} {state.summary()}")
        for hunk, where in state.hunks.items():
            click.echo(f"  {hunk:40} {where}")
    for edit in standing.own_edits:
        click.echo(f"your edit: {edit}")
    conclude(Verdict.COLLECTED)


@main.command()
@names_argument
def show(names: tuple[str, ...]) -> None:
    """Print a patch: why it exists, then its diff (the verdict goes to stderr)."""
    for name in names:
        click.echo(find_patch(name).text)
    conclude(Verdict.PASS, on_stderr=True)


@main.command()
@names_argument
@repo_option
def apply(names: tuple[str, ...], repo: Path | None) -> None:
    """Put patches on, in the order given."""
    change(names, opened(repo), reverse=False)


@main.command()
@names_argument
@repo_option
def revert(names: tuple[str, ...], repo: Path | None) -> None:
    """Take patches off, in the order given; nothing but their own lines is undone."""
    change(names, opened(repo), reverse=True)


def change(names: tuple[str, ...], copy: WorkingCopy, *, reverse: bool) -> None:
    done, there = ("reverted", State.NOT_APPLIED) if reverse else ("applied", State.APPLIED)
    for name in names:
        state = examine(find_patch(name), copy.root)
        if state.state is State.CONFLICT:
            refuse(state, copy, reverse=reverse)
        if state.state is there:
            click.echo(f"{state.patch.name} is already {done if not reverse else 'off'}; nothing to do")
            continue
        put(state.patch, copy.root, reverse=reverse)
        click.echo(f"{done} {state.patch.name}: {', '.join(state.patch.files)}")
    conclude(Verdict.PASS)


def refuse(state: PatchState, copy: WorkingCopy, *, reverse: bool) -> None:
    """Show what does not fit and stop; nothing has been written."""
    click.echo(f"{state.patch.name}: {state.summary()}")
    for hunk in conflicting_hunks(state.patch, copy.root, reverse=reverse):
        click.echo(f"\nthis hunk does not fit {hunk.file}:\n{hunk.text}")
    files = " ".join(state.patch.files)
    keep = f"git -C {shlex.quote(str(copy.root))} diff -- {files} > my-edit.patch"
    if not copy.has_commit(pinned().commit):
        click.echo(f"note: {copy.root} was made by another version of the lab; its baseline is not {pinned().commit}")
    click.echo(f"your changes to its files:\n{copy.diff(*state.patch.files)}")
    raise LabError(
        f"{state.patch.name} was not {'reverted' if reverse else 'applied'}, and nothing was written ({state.reason}). "
        f"Keep your edit with `{keep}`, then bring the lines above to what the hunk "
        "shows, or finish the patch by hand, and look at `patch.py status` again."
    )


@main.command()
@repo_option
def verify(repo: Path | None) -> None:
    """PASS: the baseline plus whole patches and nothing else. REVIEW: edits of your own. FAIL: a patch in conflict."""
    standing = examine_all(opened(repo).root)
    applied = [state.patch.name for state in standing.patches if state.state is State.APPLIED]
    click.echo(f"baseline + {', '.join(applied) or 'no patch'}")
    for state in standing.conflicts:
        click.echo(f"{state.patch.name}: {state.summary()} {state.reason}")
    for edit in standing.own_edits:
        click.echo(f"your edit: {edit}")
    conclude(Verdict.FAIL if standing.conflicts else Verdict.REVIEW if standing.own_edits else Verdict.PASS)


if __name__ == "__main__":
    main()
