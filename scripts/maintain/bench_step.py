"""Where the time of one decode step goes: schedule, prepare inputs, launch, wait for the device, account.

\b
python scripts/maintain/bench_step.py --out runs/bench-step-gpu.json

Medians over decode steps in steady state, each part by the host's clock; `gpu_us` is the device's own time for the
forward pass. Beside it, the same inputs made the plain way: new tensors from Python lists in every step, one copy
each. Every way of running (graphs, eager, flash-attn where it is installed) has its own engine.
"""

from __future__ import annotations

import gc
import importlib.util
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch

from nanolab import cli, sources
from nanolab.evidence import Recording, describe_device
from nanolab.models import describe_model
from nanolab.sources import EngineDriver, SamplingSpec
from nanolab.verdicts import EvidenceType, Verdict

CASES = ((1, 128), (16, 128), (256, 512))  # sequences, tokens of each prompt
PARTS = ("schedule", "prepare", "launch", "wait", "account")


def fill(driver: EngineDriver, count: int, context: int, steps: int) -> list[Any]:
    """`count` sequences that have been prefilled and will decode for more than `steps` steps."""
    draw = random.Random(count)
    spec = SamplingSpec(max_tokens=steps + 8, temperature=0.6, ignore_eos=True)
    prompts = [[draw.randint(32, 255) for _ in range(context)] for _ in range(count)]
    seqs = [driver.add(prompt, spec) for prompt in prompts]
    while driver.waiting:
        driver.engine.step()
    for _ in range(3):
        driver.engine.step()
    return seqs


@torch.inference_mode()
def time_step(engine: Any) -> dict[str, float]:
    """One decode step, taken apart where the engine's own step() calls its parts; microseconds."""
    scheduler, runner, on_gpu = engine.scheduler, engine.model_runner, engine.config.device == "cuda"
    begin, end = (torch.cuda.Event(enable_timing=True) if on_gpu else None for _ in range(2))
    clock = [time.perf_counter()]
    seqs, _ = scheduler.schedule()
    clock.append(time.perf_counter())
    inputs = runner.prepare_decode(seqs)
    clock.append(time.perf_counter())
    if begin is not None:
        begin.record()
    output = runner.run_model(inputs)
    if end is not None:
        end.record()
    clock.append(time.perf_counter())
    token_ids = runner.choose_tokens(output, inputs, seqs)
    clock.append(time.perf_counter())
    scheduler.postprocess(seqs, token_ids, False)
    clock.append(time.perf_counter())
    parts = {part: 1e6 * (clock[i + 1] - clock[i]) for i, part in enumerate(PARTS)}
    if begin is not None and end is not None:
        end.synchronize()
        parts["gpu"] = 1e3 * begin.elapsed_time(end)
    return parts | {"step": 1e6 * (clock[-1] - clock[0])}


def plain_inputs(seqs: Sequence[Any], block_size: int, device: str) -> list[torch.Tensor]:
    """A decode step's inputs as one would first write them: lists, then a tensor and a copy for each."""
    positions = [seq.num_tokens - 1 for seq in seqs]
    pages = [seq.block_table[p // block_size] for seq, p in zip(seqs, positions, strict=True)]
    slots = [page * block_size + p % block_size for page, p in zip(pages, positions, strict=True)]
    width = max(len(seq.block_table) for seq in seqs)
    lists: list[tuple[list[Any], torch.dtype]] = [
        ([seq.last_token for seq in seqs], torch.int64),
        (positions, torch.int64),
        (slots, torch.int32),
        ([seq.num_tokens for seq in seqs], torch.int32),
        ([seq.block_table + [-1] * (width - len(seq.block_table)) for seq in seqs], torch.int32),
        ([seq.params.temperature for seq in seqs], torch.float32),
    ]
    pin = device == "cuda"
    made = [torch.tensor(values, dtype=dtype, pin_memory=pin) for values, dtype in lists]
    return [tensor.to(device, non_blocking=True) for tensor in made]


def measure(driver: EngineDriver, count: int, context: int, steps: int) -> dict[str, Any]:
    seqs = fill(driver, count, context, steps)
    runs = [time_step(driver.engine) for _ in range(steps)]
    plain = []
    for _ in range(steps):
        started = time.perf_counter()
        plain_inputs(seqs, driver.block_size, driver.device)
        plain.append(1e6 * (time.perf_counter() - started))
    for seq in seqs:
        driver.abort(seq)
    medians = {f"{name}_us": round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}
    return {"sequences": count, "context": context} | medians | {"prepare_plain_us": round(statistics.median(plain), 1)}


def ways() -> dict[str, dict[str, Any]]:
    """How decode may run on this host: name and engine options."""
    if not torch.cuda.is_available():
        return {"eager": {"enforce_eager": True}}
    found: dict[str, dict[str, Any]] = {"graph": {"enforce_eager": False}, "eager": {"enforce_eager": True}}
    if importlib.util.find_spec("flash_attn") is not None:
        found["flash_attn"] = {"enforce_eager": False, "attention_backend": "flash_attn"}
    return found


@click.command(help=__doc__)
@click.option("--steps", type=click.IntRange(2), default=40, show_default=True, help="Measured decode steps of a case.")
@click.option("--quick", is_flag=True, help="Small batches only: a rehearsal.")
@cli.source_option
@cli.model_option
@cli.out_option
def main(steps: int, quick: bool, source: Path | None, model: Path, out: Path | None) -> None:
    engine_source, cases = sources.resolve(source), ((1, 16), (4, 16)) if quick else CASES
    titles = {"title_en": "One decode step, part by part", "title_zh": "把一轮 decode 拆开计时"}
    with Recording(out.stem if out else "bench-step", **titles, out=out) as rec:
        rec.engine, rec.model = engine_source.describe(), describe_model(model)
        options = {"max_num_seqs": max(n for n, _ in cases), "max_model_len": 1024, "gpu_memory_utilization": 0.5}
        rec.config = {"steps": steps, "temperature": 0.6, **options}
        on_gpu = False
        for way, changes in ways().items():
            with engine_source.create_engine(model, **options, **changes) as driver:
                vars(driver.engine.scheduler).pop("schedule", None)  # the driver's observation must not be measured
                rec.device, on_gpu = describe_device(driver.device), driver.device == "cuda"
                rec.config |= {f"attention_{way}": driver.attention_backend, "dtype": driver.dtype}
                rec.result[way] = [measure(driver, n, context, steps) for n, context in cases]
            del driver
            gc.collect()
            say(way, rec.result[way])
        rec.volatile += list(rec.result)
        rec.finish(Verdict.COLLECTED, EvidenceType.GPU if on_gpu else EvidenceType.CPU_ENGINE)


def say(way: str, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        parts = "  ".join(f"{part} {value}" for part, value in row.items() if part.endswith("_us"))
        click.echo(f"{way:10} n={row['sequences']:<4} {parts}")


if __name__ == "__main__":
    main()
