"""Case D's step lists for budgets of 512 and 256, from the engine's real scheduler, on CPU and without a model."""

from __future__ import annotations

from pathlib import Path

import click

from nanolab import cli, sources
from nanolab.cases import scheduling
from nanolab.evidence import Recording
from nanolab.verdicts import EvidenceType, Verdict

BUDGETS = (512, 256)


def show(budget: int, steps: list[scheduling.Step]) -> None:
    click.echo(f"budget {budget}")
    for number, step in enumerate(steps, 1):
        batch = "  ".join(f"{name} {'/'.join(map(str, counts))}" for name, counts in step.before.items())
        click.echo(f"  {number}  {step.phase:7}  {batch}")


@click.command()
@cli.source_option
@cli.out_option
def main(source: Path | None, out: Path | None) -> None:
    """PASS: both step lists are the ones that section 5.2.4 states, one prefill round more with 256."""
    engine_source = sources.resolve(source)
    titles = {"title_en": "Case D's steps by budget", "title_zh": "案例 D 在不同预算下的各步"}
    with Recording(out.stem if out else "budget-cpu", out=out, sources=[scheduling, scheduling.walk], **titles) as rec:
        rec.engine = engine_source.describe()
        cli.announce(engine=engine_source.kind, package=engine_source.package, device="cpu", model="none")
        engine = scheduling.Engine.of(engine_source)
        rec.config.update(block_size=scheduling.walk.BLOCK_SIZE, max_num_seqs=2, budgets=list(BUDGETS))
        wrong: list[str] = []
        for budget in BUDGETS:
            steps = scheduling.run_case_d(engine, budget)
            show(budget, steps)
            wrong += scheduling.case_d_differences(steps, budget)
            rec.result[f"budget_{budget}"] = {
                "prefill_rounds": sum(step.phase == "prefill" for step in steps),
                "steps": [step.row() for step in steps],
            }
        for line in wrong:
            click.echo(f"BAD  {line}", err=True)
        rec.notes += wrong
        rec.finish(Verdict.FAIL if wrong else Verdict.PASS, EvidenceType.CPU_SCHEDULER)


if __name__ == "__main__":
    main()
