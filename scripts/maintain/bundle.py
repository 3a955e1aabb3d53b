"""Build and check the offline package, and keep what stands at the root current.

\b
python scripts/maintain/bundle.py docs                      # CHECKPOINTS.md and VALIDATION.md
python scripts/maintain/bundle.py sums                      # SHA256SUMS, last: it covers the other two
python scripts/maintain/bundle.py build --version v6
python scripts/maintain/bundle.py check dist/nanovllm-inference-lab-v6.zip --rebuild
python scripts/maintain/bundle.py rehearse dist/nanovllm-inference-lab-v6.zip
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from nanolab.bundle import check, contents, documents, rehearsal, release, sums, tree
from nanolab.evidence import check_writable, conclude, repo_root, write_atomic
from nanolab.verdicts import Verdict

ZIP = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group(help=__doc__)
def main() -> None: ...


def _report(problems: list[str], good: str) -> None:
    for problem in problems:
        click.echo(problem)
    click.echo(good if not problems else f"{len(problems)} problems")
    conclude(Verdict.FAIL if problems else Verdict.PASS)


@main.command("sums")
@click.option("--check", "only_check", is_flag=True, help="Write nothing; name each file that is not as listed.")
def sums_command(only_check: bool) -> None:
    """Write SHA256SUMS, or check the tree against it."""
    root = repo_root()
    target, now = root / sums.NAME, sums.listing(root)
    if not only_check:
        write_atomic(target, sums.render(now).encode())
    recorded = sums.parse(target.read_text(encoding="utf-8")) if target.is_file() else {}
    _report(sums.differences(recorded, now), f"{sums.NAME}: {len(now)} files")


@main.command("docs")
@click.option("--check", "only_check", is_flag=True, help="Write nothing; name each document that is not current.")
def docs_command(only_check: bool) -> None:
    """Write CHECKPOINTS.md and VALIDATION.md from the manual's pages and result blocks."""
    root = repo_root()
    stale = []
    for name, text in documents.render(root).items():
        target = root / name
        if not only_check:
            write_atomic(target, text.encode())
        elif not target.is_file() or target.read_text(encoding="utf-8") != text:
            stale.append(f"{name} is not current; write it with `python scripts/maintain/bundle.py docs`")
    _report(stale, " ".join(documents.NAMES) + ": current")


@main.command("build")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Default: dist/NAME-VERSION.zip.")
@click.option("--version", default="v6", show_default=True, help="Names the release.")
def build_command(out: Path | None, version: str) -> None:
    """Build the zip of the current commit; the date is SOURCE_DATE_EPOCH or the commit's."""
    root = repo_root()
    target = check_writable(out or root / "dist" / f"{contents.TOP}-{version}.zip")
    for name in tree.uncommitted(root):
        click.echo(f"not in the bundle, because it is not committed: {name}", err=True)
    made = release.build(root, target, version)
    digest = sums.digest(target)
    click.echo(f"{digest}  {target.name}")
    click.echo(f"{target.stat().st_size / 2**20:.1f} MiB, commit {made.commit[:12] or 'none'}, dated {made.date}")
    conclude(Verdict.PASS)


@main.command("check")
@click.argument("package", type=ZIP)
@click.option("--rebuild", is_flag=True, help="Also build its commit again, elsewhere, and compare the bytes.")
def check_command(package: Path, rebuild: bool) -> None:
    """Check a zip: form, contents, sums, leaks, and that the manual inside stands alone and says what the site says."""
    found = check.problems(package)
    if rebuild and not found:
        differing = release.rebuilt_differs(repo_root(), package)
        found = [f"{name} differs when built again" for name in differing]
    _report(found, f"{package.name}: whole" + (", and the same when built again" if rebuild else ""))


@main.command("rehearse")
@click.argument("package", type=ZIP)
@click.option("--only", multiple=True, metavar="FILE[:SECTION]", help="Only these. Default: 5.1 to 5.4, B.1 and B.2.")
@click.option("--venv", is_flag=True, help="Install requirements-cpu.txt as the manual says; needs the package index.")
@click.option("--home", type=click.Path(path_type=Path, file_okay=False), help="An empty directory to keep.")
def rehearse_command(package: Path, only: tuple[str, ...], venv: bool, home: Path | None) -> None:
    """Follow the manual's CPU path from the zip alone, in an empty home."""
    with tempfile.TemporaryDirectory(prefix="nanolab-rehearsal-") as scratch:
        found = rehearsal.rehearse(package, home or Path(scratch), only or rehearsal.PATH, venv=venv, say=click.echo)
    _report(found, "the CPU path holds from the zip alone")


@main.command("follow", hidden=True)
@click.argument("only", nargs=-1)
@click.option("--logs", type=click.Path(path_type=Path, file_okay=False), required=True)
def follow_command(only: tuple[str, ...], logs: Path) -> None:
    """Run CPU sections in this very tree, as a reader does; `rehearse` calls the bundle's own copy of this."""
    failed = rehearsal.follow(repo_root(), logs, only, say=click.echo)
    conclude(Verdict.FAIL if failed else Verdict.PASS)


if __name__ == "__main__":
    main()
