"""Throughput of one engine through its own generate(): warm-ups, then measured runs, no trace and no hook (B.4).

Loading, compilation and graph capture are `init_seconds`; each measured run is submission to last token. One setting
is changed at a time, and `scripts/e2e/analyze.py compare` refuses two logs that differ in more.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import click

from nanolab import cli, sources
from nanolab.evidence import Recording, describe_device
from nanolab.models import describe_model
from nanolab.sources import EngineDriver, SamplingSpec
from nanolab.verdicts import EvidenceType, Verdict

WARM_UPS = 2
FIRST_ID, LAST_ID = 32, 255  # ordinary text in every tokenizer used


def prompts(run: int, seqs: int, length: int) -> list[list[int]]:
    """Other prompts in every run, so that no run finds an earlier one's prefix in the cache."""
    draw = random.Random(1000 + run)
    return [[draw.randint(FIRST_ID, LAST_ID) for _ in range(length)] for _ in range(seqs)]


def synchronize(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def measure(driver: EngineDriver, run: int, seqs: int, input_len: int, params: Any) -> dict[str, Any]:
    """One call of generate() for all prompts; seconds until the device is idle again."""
    work = prompts(run, seqs, input_len)
    synchronize(driver.device)
    started = time.perf_counter()
    outputs = driver.engine.generate(work, params, use_tqdm=False)
    synchronize(driver.device)
    seconds = time.perf_counter() - started
    tokens = sum(len(output["token_ids"]) for output in outputs)
    return {"seconds": seconds, "output_tokens": tokens, "tokens_per_second": tokens / seconds}


def unhook(driver: EngineDriver) -> None:
    """Give the engine its own schedule() back: the driver's observation must not be measured."""
    vars(driver.engine.scheduler).pop("schedule", None)


def sampling(driver: EngineDriver, output_len: int) -> Any:
    """The engine's own SamplingParams: greedy, exactly `output_len` tokens."""
    return driver._sampling_params(SamplingSpec(max_tokens=output_len, ignore_eos=True))


@click.command()
@click.option("--eager", is_flag=True, help="Launch kernel by kernel instead of replaying CUDA graphs.")
@click.option("--seqs", type=click.IntRange(1), default=16, show_default=True, help="Requests in a run.")
@click.option(
    "--max-num-seqs", type=click.IntRange(1), default=32, show_default=True, help="Sequences in a step at most."
)
@click.option("--input-len", type=click.IntRange(1), default=128, show_default=True, help="Tokens of each prompt.")
@click.option("--output-len", type=click.IntRange(1), default=32, show_default=True, help="Tokens of each output.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Measured runs.")
@click.option("--max-model-len", type=click.IntRange(2), default=1024, show_default=True)
@click.option("--gpu-memory-utilization", type=click.FloatRange(0, 1, min_open=True), default=0.5, show_default=True)
@click.option("--dtype", default="auto", show_default=True, help="auto, bfloat16, float16 or float32.")
@click.option("--attention-backend", default="auto", show_default=True, help="auto, flash_attn, triton or torch.")
@cli.source_option
@cli.model_option
@cli.out_option
def main(
    eager: bool, seqs: int, max_num_seqs: int, input_len: int, output_len: int, repeats: int, max_model_len: int,
    gpu_memory_utilization: float, dtype: str, attention_backend: str, source: Path | None, model: Path,
    out: Path | None,
) -> None:  # fmt: skip
    """Print init_seconds, each run, the median and the KV blocks, and one JSON line for analyze.py compare."""
    engine = sources.resolve(source)
    block_id = out.stem if out else f"benchmark-{'eager' if eager else 'graph'}"
    with Recording(block_id, title_en="Throughput of generate()", title_zh="generate() 的吞吐量", out=out) as rec:
        rec.engine, rec.model = engine.describe(), describe_model(model)
        started = time.perf_counter()
        driver = engine.create_engine(
            model, enforce_eager=eager, max_num_seqs=max_num_seqs, max_model_len=max_model_len, dtype=dtype,
            gpu_memory_utilization=gpu_memory_utilization, attention_backend=attention_backend,
        )  # fmt: skip
        with driver:
            synchronize(driver.device)
            init_seconds = time.perf_counter() - started
            unhook(driver)
            rec.device = describe_device(driver.device)
            rec.config = describe_run(driver, seqs, input_len, output_len, repeats)
            if rec.config["eager"] and not eager:
                rec.notes.append("CUDA graphs need a CUDA device: this run was eager")
                click.echo(rec.notes[-1], err=True)
            cli.announce(engine=engine.kind, device=driver.device, attention=driver.attention_backend)
            params = sampling(driver, output_len)
            numbers = cli.progress(range(WARM_UPS + repeats), "runs")
            runs = [measure(driver, number, seqs, input_len, params) for number in numbers][WARM_UPS:]
            rec.result = {
                "init_seconds": init_seconds,
                "warm_up_runs": WARM_UPS,
                "runs": runs,
                "median_tokens_per_second": statistics.median(run["tokens_per_second"] for run in runs),
                "kv_blocks": driver.num_blocks,
            }
            on_gpu = driver.device == "cuda"
        rec.volatile += [
            "init_seconds",
            "runs.*.seconds",
            "runs.*.tokens_per_second",
            "median_tokens_per_second",
            "kv_blocks",
        ]
        finish(rec, seqs * output_len, on_gpu)


def describe_run(driver: EngineDriver, seqs: int, input_len: int, output_len: int, repeats: int) -> dict[str, Any]:
    """Every setting that must be equal for two runs to be compared; the pool's size is an outcome, not a setting.

    `eager` is what the runner does, not what was asked for: on CPU it never replays graphs.
    """
    eager = bool(driver.engine.model_runner.enforce_eager)
    settings = {name: value for name, value in driver.describe().items() if name not in ("num_blocks", "enforce_eager")}
    return settings | {
        "eager": eager, "seqs": seqs, "input_len": input_len, "output_len": output_len, "repeats": repeats,
    }  # fmt: skip


def finish(rec: Recording, expected: int, on_gpu: bool) -> None:
    result = rec.result
    click.echo(f"init_seconds {result['init_seconds']:.2f}")
    for number, run in enumerate(result["runs"], 1):
        rate = f"{run['seconds']:.4f} s = {run['tokens_per_second']:.1f} tokens/s"
        click.echo(f"run {number}: {run['output_tokens']} tokens in {rate}")
    click.echo(f"median_tokens_per_second {result['median_tokens_per_second']:.1f}\nkv_blocks {result['kv_blocks']}")
    facts = {"engine": rec.engine, "model": rec.model, "device": rec.device, "config": rec.config}
    click.echo(json.dumps({"event": "benchmark"} | facts | result, separators=(",", ":")))
    wrong = [run["output_tokens"] for run in result["runs"] if run["output_tokens"] != expected]
    if wrong:
        rec.notes.append(f"a run gave {wrong[0]} output tokens, expected {expected}")
        click.echo(f"BAD  {rec.notes[-1]}", err=True)
    rec.finish(Verdict.FAIL if wrong else Verdict.COLLECTED, EvidenceType.GPU if on_gpu else EvidenceType.CPU_ENGINE)


if __name__ == "__main__":
    main()
