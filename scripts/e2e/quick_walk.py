"""Walk cases A to D step by step on a real engine and compare every state with the known values (section 5.2)."""

from __future__ import annotations

import itertools
import pdb
from pathlib import Path

import click

from nanolab import cli, sources
from nanolab.cases import walk
from nanolab.evidence import Recording, describe_device
from nanolab.models import describe_model
from nanolab.verdicts import EvidenceType, Verdict


def show(number: int, step: walk.Step) -> None:
    """One line per sequence: the step's number, total/cached/scheduled before the model, total/cached after."""
    for name in step.batch:
        before = "/".join(map(str, step.before[name]))
        total, cached, outputs, status, blocks = step.after[name]
        after = f"{total}/{cached}  {status}  outputs={outputs} blocks={blocks}"
        click.echo(f"{number:3} {step.phase:7} {name}  {before:>11}  ->  {after}")


@click.command()
@click.option("--case", "case_name", type=click.Choice(list(walk.CASES)), required=True, help="Which case to walk.")
@click.option("--budget", default=512, show_default=True, help="Token budget of a prefill step.")
@click.option("--max-num-seqs", default=2, show_default=True, help="Sequences in a step at most.")
@click.option("--dtype", default="auto", show_default=True, help="auto, bfloat16, float16 or float32.")
@click.option("--tp", default=1, show_default=True, help="Ranks (tensor parallelism).")
@click.option("--trace", is_flag=True, help="Print every state as it is reached.")
@click.option("--debug", is_flag=True, help="Enter pdb once the model is ready; try `b engine_module.LLMEngine.step`.")
@cli.source_option
@cli.model_option
@cli.out_option
def main(
    case_name: str, budget: int, max_num_seqs: int, dtype: str, tp: int, trace: bool, debug: bool,
    source: Path | None, model: Path, out: Path | None,
) -> None:  # fmt: skip
    """Run one case; PASS means that every state equals the value stated in the manual."""
    case, engine_source = walk.CASES[case_name], sources.resolve(source)
    block_id = out.stem if out else f"quick-{case_name}"
    with Recording(block_id, title_en=case.title_en, title_zh=case.title_zh, out=out, sources=[walk]) as rec:
        options = walk.ENGINE_OPTIONS | {"tensor_parallel_size": tp, "dtype": dtype}
        options |= {"max_num_batched_tokens": budget, "max_num_seqs": max_num_seqs}
        rec.engine, rec.model = engine_source.describe(), describe_model(model)
        with engine_source.create_engine(model, **options) as driver:
            rec.device, rec.config = describe_device(driver.device), driver.describe()
            cli.announce(engine=engine_source.kind, device=driver.device, attention=driver.attention_backend)
            if debug:
                engine_module = engine_source.module("engine.llm_engine")  # noqa: F841 - for the learner, in pdb
                pdb.set_trace()
            numbers = itertools.count(1)
            seen = walk.run_walk(driver, case, (lambda step: show(next(numbers), step)) if trace else None)
            on_gpu = driver.device == "cuda"
        rec.result = seen.result()
        rows = walk.expected_rows(case_name, budget, max_num_seqs)
        wrong = walk.differences(seen, rows, case) if rows else []
        for line in wrong:
            click.echo(f"BAD  {line}", err=True)
        rec.notes += wrong or ([] if rows else ["these settings have no stated values: states were only collected"])
        click.echo(f"steps={len(seen.steps)}\noutput_counts={seen.output_counts}")
        verdict = Verdict.FAIL if wrong else Verdict.PASS if rows else Verdict.COLLECTED
        rec.finish(verdict, EvidenceType.GPU if on_gpu else EvidenceType.CPU_ENGINE)


if __name__ == "__main__":
    main()
