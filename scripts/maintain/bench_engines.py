"""Throughput of this engine beside another engine directory, on one GPU, in one command.

Every engine runs in its own process, one after the other, on the same weights and the same token ids: upstream
nano-vLLM (`--against DIR`, a clone at its pin) or any other working copy. Each job is warmed up, then repeated; the
table shows medians, ratios, and the share of what the card's measured copy bandwidth would allow.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from nanolab import cli, sources
from nanolab.errors import LabError, MissingPrerequisite
from nanolab.evidence import Recording, describe_device
from nanolab.verdicts import EvidenceType, Verdict

MARK = "RESULT "
PLAIN = "/plain"  # a job run again with run_ahead=False: what launching ahead has bought


def jobs() -> dict[str, dict[str, Any]]:
    """The four jobs; prompts and lengths come from one fixed seed."""
    rng = random.Random(0)
    mixed = [(rng.randint(100, 1024), rng.randint(100, 1024)) for _ in range(256)]
    return {
        "batch1": {"requests": [(16, 256)], "eager": False, "target": 2.5},
        "batch16": {"requests": [(128, 32)] * 16, "eager": False, "target": 2.0},
        "mixed256": {"requests": mixed, "eager": False, "target": 1.6},
        "eager1": {"requests": [(16, 64)], "eager": True, "target": 1.5},
    }


def prompts(lengths: list[int], run: int) -> list[list[int]]:
    """Token ids that no other run shares, so that nothing is answered from the prefix cache."""
    rng = random.Random(1000 + run)
    return [[rng.randint(0, 10_000) for _ in range(length)] for length in lengths]


def measure(source: Path | None, model: Path, names: list[str], repeats: int, backend: str) -> dict[str, Any]:
    """Run in a fresh process: each job's runs in seconds, for the jobs that share one engine (graph or eager)."""
    import torch

    engine_source = sources.resolve(source)
    table = jobs()
    eager = table[names[0]]["eager"]
    options: dict[str, Any] = {"max_model_len": 4096, "enforce_eager": eager}
    if engine_source.kind != "upstream":
        options["attention_backend"] = backend
    start = time.perf_counter()
    driver = engine_source.create_engine(model, **options)
    engine = driver.engine
    del engine.scheduler.schedule  # the driver's observer: measure the engine alone
    facts = {
        "init_seconds": time.perf_counter() - start,
        "attention": driver.attention_backend,
        "kv_blocks": driver.num_blocks,
    }
    params_class = engine_source.module("sampling_params").SamplingParams
    measured: dict[str, list[float]] = {}
    has_run_ahead = engine_source.kind != "upstream"
    for number, name in enumerate(names + [name + PLAIN for name in names] * has_run_ahead):
        requests = table[name.removesuffix(PLAIN)]["requests"]
        if has_run_ahead:
            engine.config = engine.config.replace(run_ahead=not name.endswith(PLAIN))
        params = [params_class(temperature=0.6, ignore_eos=True, max_tokens=out) for _, out in requests]
        measured[name] = []
        for run in range(name.endswith(PLAIN), repeats + 1):
            batch = prompts([length for length, _ in requests], 100 * number + run)
            torch.cuda.synchronize()
            start = time.perf_counter()
            outputs = engine.generate(batch, params, use_tqdm=False)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            produced = sum(len(output["token_ids"]) for output in outputs)
            if produced != sum(out for _, out in requests):
                raise LabError(f"{name}: {produced} tokens came out, {sum(out for _, out in requests)} were asked for")
            if run:  # run 0 warms the job up
                measured[name].append(seconds)
    facts["runs"] = measured
    facts["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    driver.close()
    return facts


def measure_apart(
    label: str, source: Path | None, model: Path, names: list[str], repeats: int, backend: str
) -> dict[str, Any]:
    command = [sys.executable, __file__, "--worker", ",".join(names), "--model", str(model), "--repeats", str(repeats)]
    command += ["--backend", backend] + (["--source", str(source)] if source else [])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        raise LabError(f"{label} failed on {', '.join(names)}:\n{(done.stderr or done.stdout)[-2000:]}")
    facts: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK))
    return facts


def copy_bandwidth() -> float:
    """Bytes read plus written per second of a large device-to-device copy (median of 20)."""
    import torch

    source = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(23):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    del source, target
    torch.cuda.empty_cache()
    return 2 * 2**31 / statistics.median(times[3:])


def floor_seconds(requests: list[tuple[int, int]], config: dict[str, Any], bandwidth: float) -> float:
    """Decode floor: weights once per step, every sequence's keys and values once per token, over the bandwidth."""
    layers, kv_heads, head_dim = (config[k] for k in ("num_hidden_layers", "num_key_value_heads", "head_dim"))
    hidden, inner, heads = (config[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads"))
    per_layer = hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * inner
    weight_bytes = 2 * (layers * per_layer + config["vocab_size"] * hidden)
    kv_token = 2 * 2 * layers * kv_heads * head_dim
    kv_bytes = sum(kv_token * (out * length + out * (out + 1) // 2) for length, out in requests)
    steps = max(out for _, out in requests)
    return (steps * weight_bytes + kv_bytes) / bandwidth


@click.command()
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="Engine directory to compare with.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--jobs", "wanted", default="batch1,batch16,mixed256,eager1", show_default=True)
@click.option("--backend", default="auto", show_default=True, help="Attention backend of nanoengine.")
@click.option("--worker", hidden=True, help="Measure these jobs in this process and print one line.")
@cli.source_option
@cli.model_option
@cli.out_option
def main(
    against: Path | None, repeats: int, wanted: str, backend: str, worker: str | None,
    source: Path | None, model: Path, out: Path | None,
) -> None:  # fmt: skip
    """Measure, compare and print one table."""
    if worker:
        click.echo(MARK + json.dumps(measure(source, model, worker.split(","), repeats, backend)))
        return
    import torch

    if not torch.cuda.is_available():
        raise MissingPrerequisite("throughput beside another engine is measured on a CUDA device")
    table, names = jobs(), wanted.split(",")
    graph, eager = [n for n in names if not table[n]["eager"]], [n for n in names if table[n]["eager"]]
    title = {"title_en": "Throughput beside upstream", "title_zh": "与上游引擎的吞吐对比"}
    with Recording(out.stem if out else "bench-engines", out=out, **title) as rec:
        from nanolab.models import describe_model

        rec.engine, rec.model = sources.resolve(source).describe(), describe_model(model)
        rec.device, bandwidth = describe_device("cuda"), copy_bandwidth()
        config = json.loads((model / "config.json").read_text("utf-8"))
        engines: dict[str, Path | None] = {"nanoengine": source} | ({"against": against} if against else {})
        facts: dict[str, Any] = {}
        for label, directory in engines.items():
            parts = [
                measure_apart(label, directory, model, group, repeats, backend) for group in (graph, eager) if group
            ]
            facts[label] = {**parts[0], "runs": {k: v for part in parts for k, v in part["runs"].items()}}
        rows = {}
        for name in names:
            requests = table[name]["requests"]
            tokens = sum(out_len for _, out_len in requests)
            rates = {label: tokens / statistics.median(fact["runs"][name]) for label, fact in facts.items()}
            floor = tokens / floor_seconds(requests, config, bandwidth)
            row: dict[str, Any] = {f"{label}_tokens_per_s": round(rate, 1) for label, rate in rates.items()}
            if plain := facts["nanoengine"]["runs"].get(name + PLAIN):
                row["plain_tokens_per_s"] = round(tokens / statistics.median(plain), 1)
            row |= {"floor_tokens_per_s": round(floor), "share_of_floor": round(rates["nanoengine"] / floor, 3)}
            if "against" in rates:
                row |= {"ratio": round(rates["nanoengine"] / rates["against"], 2), "target": table[name]["target"]}
            rows[name] = row
            click.echo(f"{name:9} " + "  ".join(f"{k}={v}" for k, v in row.items()))
        rec.config = {
            "repeats": repeats,
            "temperature": 0.6,
            "max_model_len": 4096,
            "jobs": {n: len(table[n]["requests"]) for n in names},
        }
        rec.result = {
            "jobs": rows,
            "table": [{"job": name, **row} for name, row in rows.items()],
            "copy_bandwidth_tb_s": round(bandwidth / 1e12, 3),
            "engines": facts,
        }
        rec.volatile = list(rec.result)
        if against:
            rec.config["against"] = sources.resolve(against).describe()
            missed = [name for name, row in rows.items() if row["ratio"] < row["target"]]
            rec.notes += [f"below its target: {name}" for name in missed]
        rec.finish(Verdict.COLLECTED, EvidenceType.GPU)


if __name__ == "__main__":
    main()
