"""Read the engine's source by topic, and check that it is the pinned one.

python scripts/e2e/source_walk.py verify
python scripts/e2e/source_walk.py scheduler            # also: engine blocks runner model kernels
"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from nanolab import cli, source_walk, sources
from nanolab.errors import LabError
from nanolab.evidence import conclude
from nanolab.patches import pinned
from nanolab.sources import EngineSource
from nanolab.verdicts import Verdict

PINNED = {
    "bundled": "the baseline with every patch of the series",
    "working-copy": "the baseline",
    "upstream": f"upstream's pin {source_walk.UPSTREAM_PIN}",
}


@click.group(help=__doc__)
def main() -> None: ...


def announce(source: EngineSource) -> None:
    patches = ", ".join(source.patches_applied()) or "none"
    cli.announce(engine=source.kind, package=source.package, commit=source.commit() or "-", patches=patches)


allow_modified_option = click.option("--allow-modified", is_flag=True, help="Accept a source with edits.")


@main.command()
@cli.source_option
@allow_modified_option
def verify(source: Path | None, allow_modified: bool) -> None:
    """Print SOURCE PASS if the engine equals its pin, else list what changed."""
    engine = sources.resolve(source)
    announce(engine)
    changes = source_walk.changes(engine)
    for line in changes:
        click.echo(line)
    if not changes:
        click.echo(f"{engine.package} equals {PINNED[engine.kind]}{commit_note(engine)}")
        click.echo("SOURCE PASS")
        return conclude(Verdict.PASS)
    click.echo(f"the source differs from {PINNED[engine.kind]}; see it with `{difference_command(engine)}`")
    click.echo("SOURCE MODIFIED")
    conclude(Verdict.REVIEW if allow_modified else Verdict.FAIL)


def commit_note(engine: EngineSource) -> str:
    return f" (commit {pinned().commit})" if engine.kind == "working-copy" else ""


def difference_command(engine: EngineSource) -> str:
    if engine.kind == "bundled":
        return "python scripts/maintain/patches.py check"
    against = pinned().commit if engine.kind == "working-copy" else source_walk.UPSTREAM_PIN
    return f"git -C {shlex.quote(str(engine.root))} diff {against} -- {engine.package}"


def reading(topic: source_walk.Topic) -> click.Command:
    @main.command(topic.name, help=f"{topic.title}: annotated excerpts, with line numbers of the source as it is.")
    @cli.source_option
    @allow_modified_option
    def read(source: Path | None, allow_modified: bool) -> None:
        engine = sources.resolve(source)
        announce(engine)
        changes = [] if allow_modified or engine.kind == "bundled" else source_walk.changes(engine)
        if changes:
            again = f"{topic.name} --source {shlex.quote(str(source))}" if source else topic.name
            raise LabError(
                f"{len(changes)} difference(s) from {PINNED[engine.kind]}: {'; '.join(changes)}. To read the source as "
                f"it is now: python scripts/e2e/source_walk.py {again} --allow-modified"
            )
        for excerpt in source_walk.excerpts(engine, topic):
            click.echo(source_walk.render(excerpt))
        conclude(Verdict.PASS)

    return read


for each in source_walk.TOPICS.values():
    reading(each)

if __name__ == "__main__":
    main()
