"""The service benchmark still runs and counts every token; its times are for the benchmark, not for a test."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nanolab.load import bench


def test_owner_time_counts_full_steps_only() -> None:
    found = asyncio.run(bench.owner_time(streams=8, tokens=30))
    assert found["streams"] == 8
    assert 20 <= found["steps"] <= 30
    assert found["cpu_us_mean"] > 0


def test_throughput_and_lateness_against_a_server_process(tmp_path: Path) -> None:
    options = ["--simulated-step-ms", "0", "--max-active", "8", "--batch-seqs", "8"]
    with bench.serving(tmp_path / "server.jsonl", *options) as url:
        found = asyncio.run(bench.throughput(url, streams=8, tokens=25))
        late = asyncio.run(bench.sender_lateness(url, rate=100, seconds=0.2))
    assert (found["streams"], found["tokens"]) == (8, 200)
    assert (late["samples"], late["complete"], late["p99_ms"]) == (20, 20, None)
