"""What the service itself costs: a simulated engine that takes no time, real sockets, two cores.

Three questions. How many tokens a second leave the server and reach a client over many streams (`throughput`), how
long the owner thread is busy with events in each step (`owner_time`), and how late the open-loop sender is
(`sender_lateness`). The server is `run.py serve` in its own process, with its event log on, as a learner runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np

from nanolab.errors import LabError
from nanolab.evidence import repo_root
from nanolab.load.remote import RemoteClient, Replica
from nanolab.load.router import Router
from nanolab.load.sender import lateness_of
from nanolab.load.trace import TraceRequest
from nanolab.serving.engine import SamplingSpec
from nanolab.serving.events import Ended, Event, Sent, Token, now_ns
from nanolab.serving.lifecycle import WorkerLimits, settled_interpreter
from nanolab.serving.requests import GenerationRequest
from nanolab.serving.simulated import SimulatedConfig, SimulatedEngine, SimulatedHooks
from nanolab.serving.stream import Stream
from nanolab.serving.worker import Worker

__all__ = ["on_two_cores", "owner_time", "sender_lateness", "serving", "throughput"]

START_S = 60.0


def on_two_cores() -> int:
    """Keep this process, and the server it starts, on two cores; returns how many there are."""
    if not hasattr(os, "sched_setaffinity"):
        return os.cpu_count() or 1
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    return len(cores)


@contextlib.contextmanager
def serving(out: Path, *options: str) -> Iterator[str]:
    """`run.py serve --simulated` in a process of its own; yields its URL, ends it with SIGTERM."""
    script = repo_root() / "scripts" / "practice" / "run.py"
    command = [sys.executable, str(script), "serve", "--simulated", "--port", "0", "--out", str(out), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.match(r"ready (\S+)", line):
                yield found[1]
                break
        else:
            raise LabError(f"the server did not start: {' '.join(command[1:4])} …; run it by hand to see why")
    finally:
        process.terminate()
        try:
            process.wait(timeout=START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


# ---- throughput ------------------------------------------------------------------------------------------


@dataclass
class Received:
    """What one client process received on all its streams."""

    tokens: int = 0
    reads: int = 0  # network reads that brought at least one token
    terminal: int = 0
    delays_ns: list[int] = field(default_factory=list)  # engine's time stamp to arrival here, newest token of a read


async def throughput(url: str, streams: int, tokens: int) -> dict[str, Any]:
    """`streams` requests at once, `tokens` output tokens each; the window is first send to last terminal line."""
    received = Received()
    async with _session() as http:
        begun = time.perf_counter()
        await asyncio.gather(*(_read_stream(http, url, f"s{index}", tokens, received) for index in range(streams)))
        window = time.perf_counter() - begun
    if received.tokens != streams * tokens or received.terminal != streams:
        raise LabError(f"{received.tokens} tokens and {received.terminal} ends came, not {streams * tokens}, {streams}")
    delays = np.array(received.delays_ns) / 1e6
    return {
        "streams": streams,
        "tokens": received.tokens,
        "window_s": round(window, 4),
        "tokens_per_s": round(received.tokens / window, 1),
        "tokens_per_read": round(received.tokens / received.reads, 2),
        "delay_ms_p50": round(float(np.percentile(delays, 50)), 2),
        "delay_ms_p99": round(float(np.percentile(delays, 99)), 2),
    }


@contextlib.asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        yield http


_time_stamp = re.compile(rb'"t_ns":(\d+)')


async def _read_stream(http: aiohttp.ClientSession, url: str, name: str, tokens: int, received: Received) -> None:
    """Count token lines without decoding them: the client's own cost must not be the limit."""
    body = msgspec.json.encode(
        {"request_id": name, "prompt_token_ids": [1, 2, 3], "max_tokens": tokens, "ignore_eos": True}
    )
    async with http.post(f"{url}/generate", data=body) as response:
        if response.status != 200:
            raise LabError(f"{name} was refused: {await response.text()}")
        tail = b""
        async for data in response.content.iter_any():
            whole, _, tail = (tail + data).rpartition(b"\n")
            count = whole.count(b'"event":"token"')
            received.terminal += whole.count(b'"event":"finished"')
            if count:
                received.tokens += count
                received.reads += 1
                newest = whole[whole.rindex(b'"event":"token"') :]
                stamp = _time_stamp.search(newest)
                if stamp:
                    received.delays_ns.append(now_ns() - int(stamp[1]))


# ---- the owner thread ------------------------------------------------------------------------------------


@dataclass
class StepClock:
    """Hooks that measure what the owner thread does between two engine steps, in CPU and in wall time."""

    full_batch: int
    cpu_ns: list[int] = field(default_factory=list)
    wall_ns: list[int] = field(default_factory=list)
    _left: tuple[int, int] | None = None

    def hooks(self) -> SimulatedHooks:
        return SimulatedHooks(before_step=self._enter, after_step=self._leave)

    def _enter(self, engine: SimulatedEngine) -> None:
        if self._left is not None and len(engine.running) == self.full_batch and not engine.waiting:
            self.cpu_ns.append(time.thread_time_ns() - self._left[0])
            self.wall_ns.append(time.perf_counter_ns() - self._left[1])

    def _leave(self, engine: SimulatedEngine) -> None:
        self._left = (time.thread_time_ns(), time.perf_counter_ns())


async def owner_time(streams: int, tokens: int) -> dict[str, Any]:
    """Everything the owner thread does outside `engine.step()`, per step with all streams decoding."""
    clock = StepClock(streams)
    config = SimulatedConfig(
        max_model_len=tokens + 16, max_num_seqs=streams, max_num_batched_tokens=4096, num_kvcache_blocks=200_000
    )
    limits = WorkerLimits(max_active=streams, max_queued=streams, stream_capacity=tokens + 16)
    loop = asyncio.get_running_loop()
    worker = Worker(lambda: SimulatedEngine(config, clock.hooks()), limits, loop=loop)
    await asyncio.to_thread(worker.start)
    requests = [GenerationRequest(f"s{i}", [1 + i % 200], SamplingSpec(max_tokens=tokens)) for i in range(streams)]
    with settled_interpreter():
        counts = await asyncio.gather(*(_count(worker.submit(request)) for request in requests))
        await asyncio.to_thread(worker.close, START_S)
    if sum(counts) != streams * tokens:
        raise LabError(f"{sum(counts)} of {streams * tokens} tokens reached their streams")
    cpu, wall = np.array(clock.cpu_ns) / 1e3, np.array(clock.wall_ns) / 1e3
    return {
        "streams": streams,
        "steps": len(cpu),
        "cpu_us_mean": round(float(cpu.mean()), 2),
        "cpu_us_p50": round(float(np.percentile(cpu, 50)), 2),
        "cpu_us_p99": round(float(np.percentile(cpu, 99)), 2),
        "wall_us_p50": round(float(np.percentile(wall, 50)), 2),
    }


async def _count(stream: Stream) -> int:
    return sum([isinstance(event, Token) async for event in stream])


# ---- the sender ------------------------------------------------------------------------------------------


async def sender_lateness(url: str, rate: float, seconds: float) -> dict[str, Any]:
    """An open loop at a fixed rate against a live server; how late each request left."""
    events: list[Event] = []
    requests: Sequence[TraceRequest] = [
        TraceRequest(
            request_id=f"l{index}",
            timestamp=index * 1000 / rate,
            input_length=4,
            output_length=8,
            prompt_token_ids=[1, 2, 3, index % 256],
        )
        for index in range(int(rate * seconds))
    ]
    async with _session() as http:
        client = RemoteClient(http, [Replica(url)], Router("round_robin", 1), "native", events.extend)
        with settled_interpreter():
            await client.run(requests)
    ends = [event for event in events if isinstance(event, Ended)]
    late = lateness_of([event for event in events if isinstance(event, Sent)])
    assert late is not None
    shown = {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(late).items()}
    return {"rate_per_s": rate, "complete": sum(end.reason.is_complete for end in ends), **shown}
