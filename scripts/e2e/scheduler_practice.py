"""Section 5.4.2 on CPU: the baseline, your default and your `balanced` over five scenarios of the real scheduler.

The baseline comes from the working copy's git objects (for the bundled engine: from the patches) into a temporary
directory; the work tree is read and never touched. No model, no GPU.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from nanolab import cli, sources
from nanolab.cases import scheduling, scheduling_practice
from nanolab.cases.scheduling import Engine
from nanolab.errors import LabError
from nanolab.evidence import Recording
from nanolab.patches import WorkingCopy, build_baseline, pinned
from nanolab.sources import EngineSource
from nanolab.verdicts import EvidenceType, Verdict


def extract_baseline(source: EngineSource, dest: Path) -> EngineSource:
    if source.kind == "upstream":
        raise LabError(
            "upstream nano-vLLM has no `balanced`; drive a working copy with patch 03, or leave --source out"
        )
    if source.kind == "bundled":
        build_baseline(dest)
    else:
        copy, commit = WorkingCopy.open(source.root), pinned().commit
        if not copy.has_commit(commit):
            raise LabError(
                f"{source.root} does not hold the baseline commit {commit}: it was made by another version of the lab. "
                "Make a new one (`python scripts/e2e/engine_source.py init --dir NEW`) and bring your edits over."
            )
        copy.extract(commit, dest)
    return EngineSource("working-copy", dest, "nanoengine")


@click.command()
@cli.source_option
@cli.out_option
def main(source: Path | None, out: Path | None) -> None:
    """PASS: the default makes the baseline's steps, and `balanced` shares the steps as it promises."""
    current = sources.resolve(source)
    used = [scheduling, scheduling_practice]
    titles = {"title_en": "Three schedulers, five scenarios", "title_zh": "三种调度，五个场景"}
    with (
        tempfile.TemporaryDirectory(prefix="nanolab-baseline-") as scratch,
        Recording(out.stem if out else "scheduler-cpu", out=out, sources=used, **titles) as rec,
    ):
        rec.engine = current.describe()
        cli.announce(engine=current.kind, package=current.package, device="cpu", model="none")
        baseline = extract_baseline(current, Path(scratch))
        engines = {
            "baseline": Engine.of(baseline, beside=True),
            "default": Engine.of(current, beside=True),
            "balanced": Engine.of(current, "balanced", beside=True),
        }
        rec.config.update(scenarios={s.name: {"sizes": s.sizes} for s in scheduling_practice.SCENARIOS})
        wrong: list[str] = []
        for scenario in cli.progress(scheduling_practice.SCENARIOS, "scenarios"):
            facts, found = scheduling_practice.compare(scenario, engines)
            rec.result[scenario.name] = facts
            wrong += found
            click.echo(f"{'BAD ' if found else 'GOOD'} {scenario.name}: {scenario.title_en}")
            for name, phases in facts["phases"].items():
                click.echo(f"       {name:9} {phases}")
        for line in wrong:
            click.echo(f"BAD  {line}", err=True)
        rec.notes += wrong
        rec.finish(Verdict.FAIL if wrong else Verdict.PASS, EvidenceType.CPU_SCHEDULER)


if __name__ == "__main__":
    main()
