"""Log every step of a fixed case as JSON lines: the four moments of each sequence (B.2, B.3, B.6).

The log is stdout, one event a line; everything else goes to stderr:

    python scripts/labs/03_trace_engine.py --case lifecycle | tee runs/lifecycle.log
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from nanolab import cli, observe, sources
from nanolab.cases import traced, walk
from nanolab.evidence import Recording, describe_device
from nanolab.models import describe_model
from nanolab.observe import StepRecorder, model_dims
from nanolab.sources import EngineDriver, SamplingSpec
from nanolab.verdicts import EvidenceType, Verdict

BUDGET = 512


def print_event(event: dict[str, Any]) -> None:
    click.echo(json.dumps(event, separators=(",", ":"), ensure_ascii=False))


def play(driver: EngineDriver, case: str, recorder: StepRecorder) -> dict[str, Any]:
    """Add each request when it may arrive, and step until all have finished."""
    waiting, seqs = list(traced.TRACED[case]), {}
    finished: set[int] = set()
    while waiting or driver.has_work():
        while waiting and (waiting[0].after is None or seqs[waiting[0].after].seq_id in finished):
            request = waiting.pop(0)
            if request.after:
                recorder.emit({"event": "prefix_second_request", "step": recorder.step, "request": request.name})
            seq = driver.add(list(request.prompt), SamplingSpec(max_tokens=request.max_tokens, ignore_eos=True))
            seqs[request.name] = seq
            recorder.watch(seq, request.name)
        finished |= {seq.seq_id for seq in driver.step().finished}
    return {name: seq.num_completion_tokens for name, seq in seqs.items()}


def run_event(case: str, rec: Recording, model: Path) -> dict[str, Any]:
    """The first line of the log: what ran, so that the log explains itself."""
    requests = [
        {"request": r.name, "prompt_tokens": len(r.prompt), "max_tokens": r.max_tokens} for r in traced.TRACED[case]
    ]
    facts = {"engine": rec.engine, "model": rec.model, "device": rec.device, "config": rec.config}
    return {"event": "run", "case": case, "requests": requests, "dims": model_dims(model).facts()} | facts


@click.command()
@click.option("--case", type=click.Choice(list(traced.TRACED)), required=True, help="Which case to log.")
@click.option("--shapes", is_flag=True, help="Also log the shapes of layer 0 as model_shape events.")
@click.option("--dtype", default="auto", show_default=True, help="auto, bfloat16, float16 or float32.")
@click.option("--attention-backend", default="auto", show_default=True, help="auto, flash_attn, triton or torch.")
@cli.source_option
@cli.model_option
@cli.out_option
def main(
    case: str, shapes: bool, dtype: str, attention_backend: str, source: Path | None, model: Path, out: Path | None
) -> None:
    """Print one JSON line per event; `scripts/e2e/analyze.py` checks the log."""
    engine = sources.resolve(source)
    title_en, title_zh = traced.TITLES[case]
    block_id = out.stem if out else f"trace-{case}"
    modules = [traced, walk, observe]
    with Recording(
        block_id, title_en=title_en, title_zh=title_zh, out=out, sources=modules, verdict_on_stderr=True
    ) as rec:
        rec.engine, rec.model = engine.describe(), describe_model(model)
        options = walk.ENGINE_OPTIONS | {"max_num_batched_tokens": BUDGET, "max_num_seqs": 2}
        with engine.create_engine(model, **options, dtype=dtype, attention_backend=attention_backend) as driver:
            rec.device, rec.config = describe_device(driver.device), driver.describe()
            cli.announce(engine=engine.kind, device=driver.device, attention=driver.attention_backend)
            print_event(run_event(case, rec, model))
            recorder = StepRecorder(driver, print_event, shapes=shapes)
            try:
                outputs = play(driver, case, recorder)
            finally:
                recorder.detach()
            rec.result = {"case": case, "steps": recorder.step, "output_counts": outputs}
            print_event({"event": "end", **rec.result})
            on_gpu = driver.device == "cuda"
        rec.finish(Verdict.COLLECTED, EvidenceType.GPU if on_gpu else EvidenceType.CPU_ENGINE)


if __name__ == "__main__":
    main()
