"""Keep the Chinese and the English manual in step.

\b
python scripts/maintain/parity.py check                       # every page
python scripts/maintain/parity.py check ch5/5-1-setup         # one page
python scripts/maintain/parity.py confirm ch5/5-1-setup       # both say the same now: lock the pair
"""

from __future__ import annotations

import click

from nanolab.evidence import conclude, repo_root
from nanolab.manual import parity
from nanolab.verdicts import Verdict


@click.group(help=__doc__)
def main() -> None: ...


@main.command("check")
@click.argument("pages", nargs=-1)
@click.option("--structure-only", is_flag=True, help="Leave the lock out: for pages that are still being written.")
@click.option("--complete", is_flag=True, help="Also fail on planned pages and command sections that nothing shows.")
def check_command(pages: tuple[str, ...], structure_only: bool, complete: bool) -> None:
    """Compare the two languages of PAGES (names such as ch5/5-1-setup; default: all) and report every difference."""
    found = parity.check(repo_root(), [_name(page) for page in pages])
    if complete:
        found += parity.incomplete(repo_root())
    if structure_only:
        found = [d for d in found if not isinstance(d, parity.LockDifference)]
    for difference in found:
        click.echo(str(difference))
    click.echo(f"{len(pages) or len(parity.page_names(repo_root()))} pages: {len(found)} differences")
    conclude(Verdict.FAIL if found else Verdict.PASS)


@main.command("confirm")
@click.argument("pages", nargs=-1, required=True)
def confirm_command(pages: tuple[str, ...]) -> None:
    """Record that both languages of PAGES say the same; read them side by side first."""
    root = repo_root()
    for page in pages:
        click.echo(f"locked {parity.confirm(root, _name(page)).relative_to(root)}")
    conclude(Verdict.PASS)


def _name(page: str) -> str:
    """Accept docs/zh/ch5/5-1-setup.md as well as ch5/5-1-setup."""
    for prefix in ("docs/zh/", "docs/en/"):
        page = page.removeprefix(prefix)
    return page.removesuffix(".md")


if __name__ == "__main__":
    main()
