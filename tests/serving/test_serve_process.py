"""`run.py serve` as a process: signals, the deadline, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from nanolab.serving.eventlog import read_log
from nanolab.serving.events import Finished

from .helpers import check_lives

ROOT = Path(__file__).resolve().parents[2]
RUN = [sys.executable, str(ROOT / "scripts" / "practice" / "run.py")]
START_S, EXIT_S = 60.0, 20.0


@contextlib.contextmanager
def serving(out: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, in a group of its own, and its URL; killed at the end whatever happened."""
    command = [*RUN, "serve", "--port", "0", "--out", str(out), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        assert process.stdout is not None
        watchdog = time.monotonic() + START_S
        for line in process.stdout:
            if line.startswith("ready "):
                yield process, line.split()[1]
                break
            assert time.monotonic() < watchdog
        else:
            raise AssertionError(f"the server did not start: {process.communicate()[1]}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


async def open_streams(url: str, count: int, max_tokens: int, started: asyncio.Event) -> list[list[bytes]]:
    """`count` streams; `started` is set when each has brought a token. Returns every line of every stream."""
    tokens = 0

    async def one(http: aiohttp.ClientSession, index: int) -> list[bytes]:
        nonlocal tokens
        body = msgspec.json.encode(
            {"request_id": f"s{index}", "prompt_token_ids": [index % 256], "max_tokens": max_tokens}
        )
        lines: list[bytes] = []
        async with http.post(f"{url}/generate", data=body) as response:
            assert response.status == 200
            async for line in response.content:
                first = b'"event":"token"' in line and not any(b'"event":"token"' in seen for seen in lines)
                lines.append(line)
                tokens += first
                if tokens == count:
                    started.set()
        return lines

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as http:
        return list(await asyncio.gather(*(one(http, index) for index in range(count))))


def terminate_under_streams(process: subprocess.Popen[str], url: str, count: int, sign: int) -> list[list[bytes]]:
    async def main() -> list[list[bytes]]:
        started = asyncio.Event()
        reading = asyncio.create_task(open_streams(url, count, 900, started))
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=START_S)
        assert started.is_set()
        process.send_signal(sign)
        return await reading

    return asyncio.run(main())


def check_no_child(process: subprocess.Popen[str]) -> None:
    """No member of the server's process group outlives it (multiprocessing's own tracker takes a moment)."""
    deadline = time.monotonic() + 5
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(process.pid, 0)
            assert time.monotonic() < deadline, "a child of the server is still there"
            time.sleep(0.02)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_200_open_streams_ends_each_and_leaves_nothing(sign: int, tmp_path: Path) -> None:
    out = tmp_path / "server.jsonl"
    options = [
        "--simulated",
        "--simulated-step-ms",
        "20",
        "--batch-seqs",
        "256",
        "--max-active",
        "256",
        "--drain-s",
        "0.5",
    ]
    with serving(out, *options) as (process, url):
        streams = terminate_under_streams(process, url, 200, sign)
        signalled = time.monotonic()
        stdout, stderr = process.communicate(timeout=EXIT_S)
        assert time.monotonic() - signalled < EXIT_S
        assert process.returncode == 0, stderr
        assert stdout.splitlines()[-1] == "COLLECTED"
        check_no_child(process)
    for lines in streams:
        events = [msgspec.json.decode(line) for line in lines]
        terminal = [index for index, event in enumerate(events) if event["event"] == "finished"]
        assert terminal == [len(events) - 1]
        assert events[-1]["reason"] == "shutdown"
        assert events[-1]["output_tokens"] == sum(event["event"] == "token" for event in events)
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0, "something still listens on the port"
    log = read_log(out)
    assert not log.is_partial
    check_lives(log.events)
    assert sum(isinstance(event, Finished) for event in log.events) == 200


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
def test_the_real_engine_leaves_no_child_and_no_shared_memory(tp: int, tiny_model: Path, tmp_path: Path) -> None:
    """Two ranks are two processes and a shared-memory block under a name of this test's own."""
    out, name = tmp_path / "server.jsonl", f"nano_test_{os.getpid()}_{tp}"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        meeting_port = probe.getsockname()[1]
    options = ["--model", str(tiny_model), "--tp", str(tp), "--shm-name", name, "--drain-s", "0.5"]
    options += ["--dist-init", f"tcp://127.0.0.1:{meeting_port}"]
    with serving(out, *options) as (process, url):
        streams = terminate_under_streams(process, url, 8, signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        check_no_child(process)
    assert [entry for entry in os.listdir("/dev/shm") if name in entry] == []
    for lines in streams:
        assert sum(b'"event":"finished"' in line for line in lines) == 1
        assert b'"event":"finished"' in lines[-1]
    assert not read_log(out).is_partial


def test_a_second_signal_makes_the_deadline_now(tmp_path: Path) -> None:
    options = ["--simulated", "--simulated-step-ms", "50", "--drain-s", "600"]
    with serving(tmp_path / "server.jsonl", *options) as (process, url):

        async def main() -> list[list[bytes]]:
            started = asyncio.Event()
            reading = asyncio.create_task(open_streams(url, 1, 900, started))
            await asyncio.wait_for(started.wait(), START_S)
            process.send_signal(signal.SIGINT)
            async with aiohttp.ClientSession() as http:
                while True:
                    async with http.get(f"{url}/health") as response:
                        if response.status == 503:
                            break
            process.send_signal(signal.SIGINT)
            return await reading

        (lines,) = asyncio.run(asyncio.wait_for(main(), START_S))
        assert b'"reason":"shutdown"' in lines[-1]
        process.communicate(timeout=EXIT_S)
        assert process.returncode == 0


SLOW_TO_LOAD = """
import asyncio, time
from nanolab.serving.server import ServeOptions, serve
from nanolab.serving.simulated import SimulatedEngine

def create():
    print("loading", flush=True)
    time.sleep(%d)
    return SimulatedEngine()

asyncio.run(serve(create, ServeOptions(port=0)))
"""


@pytest.mark.parametrize(("load_s", "signals", "code"), [(2, 1, 0), (600, 2, 128 + signal.SIGINT)])
def test_a_signal_while_the_engine_loads(load_s: int, signals: int, code: int) -> None:
    """Loading cannot be interrupted: one signal stops after it, a second one does not wait for it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", SLOW_TO_LOAD % load_s]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, env=environment, **pipes)
    try:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        assert "stopping once the engine has loaded" in process.stderr.readline()
        for _ in range(signals - 1):
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=EXIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == code


def test_a_stalled_client_does_not_hold_up_the_exit(tmp_path: Path) -> None:
    """A client that keeps its connection open and reads nothing is cut off after the drain."""
    options = ["--simulated", "--simulated-step-ms", "1", "--drain-s", "0.2", "--max-model-len", "60000"]
    options += ["--stream-capacity", "100000"]
    with serving(tmp_path / "server.jsonl", *options) as (process, url):
        host, port = url.removeprefix("http://").split(":")
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            stalled.connect((host, int(port)))
            body = b'{"prompt": "s", "max_tokens": 50000}'
            stalled.sendall(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            assert stalled.recv(1)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=EXIT_S)
        assert process.returncode == 0


def test_port_in_use_ends_before_the_engine_loads(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [*RUN, "serve", "--simulated", "--port", port, "--out", str(tmp_path / "x.jsonl")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr
    assert not (tmp_path / "x.jsonl").exists()


def test_an_interrupted_load_leaves_a_log_marked_partial(tmp_path: Path) -> None:
    out = tmp_path / "load.jsonl"
    words = ["--simulated", "--simulated-step-ms", "50", "--trace", str(ROOT / "workloads" / "mixed.jsonl")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [*RUN, "load", *words, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        deadline = time.monotonic() + START_S
        while not (out.exists() and b'"token"' in out.read_bytes()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=EXIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode not in (0, -signal.SIGKILL)
    log = read_log(out)
    assert any("the run ended early" in problem for problem in log.problems)
