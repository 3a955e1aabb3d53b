"""Measure the service path with a simulated engine that takes no time: tokens/s, owner thread, sender lateness."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import click

from nanolab import cli
from nanolab.evidence import Recording, describe_device
from nanolab.load import bench
from nanolab.serving import delivery, worker
from nanolab.verdicts import EvidenceType, Verdict

TOKENS_PER_S, OWNER_US, LATENESS_MS = 20_000, 50.0, 5.0
PACE = 1.25  # the paced engine's rate as a multiple of the target: joining, and steps a little late, cost some of it


@click.command()
@click.option("--streams", default=256, show_default=True, help="Concurrent requests.")
@click.option("--tokens", default=800, show_default=True, help="Output tokens of each.")
@click.option("--rate", default=200.0, show_default=True, help="Requests a second of the open loop.")
@click.option("--seconds", default=5.0, show_default=True, help="Length of the open loop.")
@cli.out_option
def main(streams: int, tokens: int, rate: float, seconds: float, out: Path | None) -> None:
    """PASS when every target holds on this machine, REVIEW when one does not: it is a benchmark, not a test."""
    with (
        Recording(
            out.stem if out else "service-benchmark",
            title_en="Cost of the service path, simulated engine at zero cost",
            title_zh="服务路径的开销（模拟引擎，零计算成本）",
            out=out,
            sources=[bench, worker, delivery],
        ) as rec,
        tempfile.TemporaryDirectory() as scratch,
    ):
        cores, busy = bench.on_two_cores(), round(os.getloadavg()[0], 2)  # other work on this machine shows here
        log = Path(scratch) / "server.jsonl"
        wide = ["--batch-seqs", str(streams), "--max-active", str(streams), "--max-model-len", str(tokens + 64)]
        wide += ["--stream-capacity", str(tokens + 64), "--batch-tokens", "4096", "--max-queued", "2000"]
        with bench.serving(log, "--simulated-step-ms", "0", *wide) as url:
            free = asyncio.run(bench.throughput(url, streams, tokens))
            late = asyncio.run(bench.sender_lateness(url, rate, seconds))
        pace_ms = streams / (TOKENS_PER_S * PACE) * 1e3
        with bench.serving(log, "--simulated-step-ms", f"{pace_ms:.3f}", *wide) as url:
            paced = asyncio.run(bench.throughput(url, streams, tokens // 2))
        owner = asyncio.run(bench.owner_time(streams, tokens))
        rec.device = describe_device("cpu")
        rec.engine = {"kind": "simulated", "package": "nanolab.serving.simulated"}
        rec.config = {"streams": streams, "tokens": tokens, "rate": rate, "seconds": seconds, "cores": cores}
        rec.config["load_average_before"] = busy
        rec.result = {
            "throughput_engine_at_zero_cost": free,
            "throughput_engine_paced": paced | {"step_ms": round(pace_ms, 3)},
            "owner_thread_per_step": owner,
            "sender_lateness_ms": late,
            "targets": {"tokens_per_s": TOKENS_PER_S, "owner_cpu_us": OWNER_US, "lateness_p99_ms": LATENESS_MS},
        }
        rec.volatile = [name for name in rec.result if name != "targets"]
        missed = []
        if busy > 0.5:
            rec.notes.append(f"the load average was {busy} before the run: the machine was not idle")
        for name, seen in (("at zero cost", free), ("paced", paced)):
            if seen["tokens_per_s"] < TOKENS_PER_S:
                missed.append(f"{seen['tokens_per_s']} tokens/s, engine {name}, is under {TOKENS_PER_S}")
        if owner["cpu_us_mean"] >= OWNER_US:
            missed.append(f"the owner thread spends {owner['cpu_us_mean']} us a step on events, not under {OWNER_US}")
        if late["p99_ms"] is None or late["p99_ms"] >= LATENESS_MS:
            missed.append(f"the sender's lateness p99 is {late['p99_ms']} ms, not under {LATENESS_MS}")
        rec.notes += missed
        for name, facts in rec.result.items():
            click.echo(f"{name}: {facts}")
        for note in missed:
            click.echo(f"note: {note}")
        rec.finish(Verdict.REVIEW if missed else Verdict.PASS, EvidenceType.CPU_SIMULATION)


if __name__ == "__main__":
    main()
