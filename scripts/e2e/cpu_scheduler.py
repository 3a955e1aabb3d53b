"""Two scenes on the engine's real scheduler and block manager, on CPU and without a model.

python scripts/e2e/cpu_scheduler.py preempt --out runs/scheduler-preemption.json     # B.2.2
python scripts/e2e/cpu_scheduler.py refs --out runs/prefix-cache-refs.json           # B.6
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from nanolab import cli, sources
from nanolab.cases import scheduling, scheduling_memory
from nanolab.evidence import Recording
from nanolab.verdicts import EvidenceType, Verdict

Scene = Callable[[scheduling.Engine], tuple[dict[str, Any], list[str]]]


@click.group(help=__doc__)
def main() -> None: ...


def play(scene: Scene, source: Path | None, out: Path | None, default_id: str, title_en: str, title_zh: str) -> None:
    engine_source = sources.resolve(source)
    used = [scheduling, scheduling_memory]
    with Recording(out.stem if out else default_id, title_en=title_en, title_zh=title_zh, out=out, sources=used) as rec:
        rec.engine = engine_source.describe()
        cli.announce(engine=engine_source.kind, package=engine_source.package, device="cpu", model="none")
        facts, wrong = scene(scheduling.Engine.of(engine_source))
        rec.result.update(facts)
        rec.notes += wrong
        for name, value in facts.items():
            if name not in ("prefill", "decode"):
                click.echo(f"{name}: {value}")
        for line in wrong:
            click.echo(f"BAD  {line}", err=True)
        rec.finish(Verdict.FAIL if wrong else Verdict.PASS, EvidenceType.CPU_SCHEDULER)


@main.command()
@cli.source_option
@cli.out_option
def preempt(source: Path | None, out: Path | None) -> None:
    """Four blocks for three prompts: at decode the tail of `running` gives its blocks back."""
    title = ("A preemption on a pool of four blocks", "四个块的池里的一次抢占")
    play(scheduling_memory.preempt, source, out, "scheduler-preemption", *title)


@main.command()
@cli.source_option
@cli.out_option
def refs(source: Path | None, out: Path | None) -> None:
    """Two shared blocks: reference counts as requests come and go, and what a hit is."""
    title = ("Reference counts of two shared blocks", "两个共享块的引用计数")
    play(scheduling_memory.refs, source, out, "prefix-cache-refs", *title)


if __name__ == "__main__":
    main()
