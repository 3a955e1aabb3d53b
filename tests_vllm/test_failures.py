"""What goes wrong with a real vLLM: another model name, a prompt that does not fit, an engine that dies mid-run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from nanolab.errors import LabError
from nanolab.load.runs import LoadSummary, RemoteOptions, load_remote
from nanolab.load.trace import TraceRequest, read_trace, write_trace
from nanolab.serving.eventlog import read_log
from nanolab.serving.events import Chunk

from .conftest import StartVllm


def post(url: str, body: object) -> tuple[int, str]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def long_trace(path: Path, requests: int = 4, output: int = 900) -> RemoteOptions:
    prompts = [list(range(10 + index, 26 + index)) for index in range(requests)]
    write_trace(
        path,
        [
            TraceRequest(
                request_id=f"r{index}", timestamp=0.0, input_length=16, output_length=output, prompt_token_ids=prompt
            )
            for index, prompt in enumerate(prompts)
        ],
    )
    return RemoteOptions(path, path.with_suffix(".log.jsonl"), (), "openai", warmup=1)


def engine_core(server_text: str) -> int:
    """Process id of vLLM's engine, from its own log lines."""
    marked = server_text.split("EngineCore pid=", 1)[1]
    return int(marked.split(")", 1)[0])


def test_failures_are_named_and_a_partial_run_is_marked(start_vllm: StartVllm, tmp_path: Path) -> None:
    with start_vllm() as url:
        status, answer = post(url, {"model": "another-name", "prompt": "Hello", "max_tokens": 2})
        assert (status, "another-name" in answer) == (404, True)

        too_long = long_trace(tmp_path / "too-long.jsonl", output=1020)
        with pytest.raises(LabError, match="exceed the context of 1024"):
            asyncio.run(drive(too_long, url))

        options = long_trace(tmp_path / "dies.jsonl")
        summary = asyncio.run(drive_and_kill(options, url, engine_core((tmp_path / "vllm.txt").read_text())))
        assert not summary.is_clean
        assert summary.ends["error"] > 0
        assert sum(summary.ends.values()) == 4
        log = read_log(summary.out)
        assert log.is_partial
        assert log.header.evidence == "cpu-engine"


async def drive(options: RemoteOptions, url: str) -> LoadSummary:
    chosen = RemoteOptions(options.trace, options.out, (url,), options.api, warmup=options.warmup)
    return await load_remote(chosen, read_trace(options.trace), lambda **_: None)


async def drive_and_kill(options: RemoteOptions, url: str, pid: int) -> LoadSummary:
    """Kill the engine once tokens of the measured requests are in the log."""
    running = asyncio.create_task(drive(options, url))
    async with asyncio.timeout(300):
        while not _has_tokens(options.out):
            assert not running.done(), "the run was over before its first token was seen"
            await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        return await running


def _has_tokens(path: Path) -> bool:
    try:
        log = read_log(path)
    except LabError:
        return False  # not there yet, or its first line is being written
    return any(event.request_id == "r0" for event in log.of(Chunk))
