"""Load against an OpenAI-compatible server that is not the lab's: what its log may claim, and how it may fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nanolab.errors import LabError
from nanolab.load.runs import LoadSummary, RemoteOptions, load_remote
from nanolab.load.trace import Trace, read_trace, write_trace
from nanolab.serving import Reason
from nanolab.serving.eventlog import read_log
from nanolab.serving.events import Ended

from .helpers import trace_request

Answer = Callable[[int, web.Request], Any]
INFO = "model='m', tensor_parallel_size=1, enforce_eager=True, device_config=cpu, served_model_name=qwen3-demo"
CARD = {"id": "qwen3-demo", "root": "/nowhere/model", "max_model_len": 512}


def sse(message: Any) -> bytes:
    return b"data: " + (message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n\n"


async def tokens(request: web.Request, count: int, error: str | None = None) -> web.StreamResponse:
    """`count` chunks of one token; then the end, or an error inside the stream."""
    response = web.StreamResponse()
    await response.prepare(request)
    for index in range(1, count + 1):
        last = index == count and error is None
        choice = {"index": 0, "text": "x", "finish_reason": "length" if last else None}
        await response.write(sse({"choices": [choice], "usage": {"completion_tokens": index}}))
    await response.write(sse({"error": {"message": error, "code": 500}}) if error else sse(b"[DONE]"))
    return response


@contextlib.asynccontextmanager
async def stand_in(
    answer: Answer, version: str | None = "0.32.0", card: Any = CARD, info: str | None = INFO
) -> AsyncIterator[str]:
    """vLLM's shape: an empty /health, the rest in other places; the n-th completion is answered by `answer(n, …)`."""
    seen = 0

    async def completions(request: web.Request) -> web.StreamResponse:
        nonlocal seen
        seen += 1
        response: web.StreamResponse = await answer(seen, request)
        return response

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [card]} if card else {"detail": "Not Found"}, status=200 if card else 404)

    async def show_version(_: web.Request) -> web.Response:
        return web.json_response({"version": version})

    async def server_info(_: web.Request) -> web.Response:
        return web.json_response({"vllm_config": info, "vllm_env": {}})

    app = web.Application()
    app.add_routes([web.get("/health", health), web.get("/v1/models", models)])
    app.add_routes([web.post("/v1/completions", completions)])
    if version is not None:
        app.add_routes([web.get("/version", show_version)])
    if info is not None:
        app.add_routes([web.get("/server_info", server_info)])
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def good(_: int, request: web.Request) -> web.StreamResponse:
    body = await request.json()
    assert body["model"] == "qwen3-demo"
    return await tokens(request, body["max_tokens"])


def small_trace(tmp_path: Path, requests: int = 4) -> Trace:
    path = tmp_path / "trace.jsonl"
    write_trace(path, [trace_request(f"r{index}", at_ms=index * 5) for index in range(requests)])
    return read_trace(path)


async def run_load(tmp_path: Path, *urls: str, warmup: int = 1) -> LoadSummary:
    trace = small_trace(tmp_path)
    options = RemoteOptions(trace.path, tmp_path / "log.jsonl", urls, "openai", warmup=warmup)
    return await load_remote(options, trace, lambda **_: None)


def test_vllm_on_cpu_is_cpu_engine_evidence(tmp_path: Path, tiny_model: Path) -> None:
    async def main() -> None:
        async with stand_in(good, card=CARD | {"root": str(tiny_model)}) as url:
            summary = await run_load(tmp_path, url)
        header = read_log(tmp_path / "log.jsonl").header
        assert summary.is_clean
        assert (header.evidence, header.lateness_limit_ms) == ("cpu-engine", 100.0)
        assert header.engine == {"kind": "vllm", "package": "vllm", "version": "0.32.0", "commit": None}
        assert header.model is not None
        assert (header.model["name"], header.model["synthetic"]) == ("tiny", True)
        assert header.device is not None
        assert header.device["kind"] == "cpu"
        assert (header.config["execution"], header.config["tensor_parallel_size"]) == ("eager", 1)
        assert (header.config["served_model"], header.config["max_model_len"]) == ("qwen3-demo", 512)

    asyncio.run(main())


@pytest.mark.parametrize(("version", "info"), [("0.32.0", None), ("0.32.0", "device_config=tpu"), (None, None)])
def test_what_a_server_does_not_reveal_stays_open(tmp_path: Path, version: str | None, info: str | None) -> None:
    async def main() -> None:
        async with stand_in(good, version=version, info=info) as url:
            await run_load(tmp_path, url)
        header = read_log(tmp_path / "log.jsonl").header
        assert (header.evidence, header.device, header.model) == (None, None, None)
        assert (header.engine or {}).get("version") == version

    asyncio.run(main())


def test_a_trace_that_does_not_fit_the_context_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async def never(_: int, request: web.Request) -> web.StreamResponse:
        raise AssertionError("a request was sent")

    async def main() -> None:
        async with stand_in(never, card=CARD | {"max_model_len": 8}) as url:
            with pytest.raises(LabError, match="10 tokens in and out exceed the context of 8"):
                await run_load(tmp_path, url)

    asyncio.run(main())


def test_errors_in_the_middle_of_a_run_leave_a_partial_log(tmp_path: Path) -> None:
    """Warm-up and two requests are served; then one breaks inside its stream and one gets HTTP 500."""

    async def failing(number: int, request: web.Request) -> web.StreamResponse:
        if number <= 3:
            return await good(number, request)
        if number == 4:
            return await tokens(request, 2, error="EngineCore encountered an issue")
        return web.json_response({"error": {"message": "EngineCore encountered an issue"}}, status=500)

    async def main() -> None:
        async with stand_in(failing) as url:
            summary = await run_load(tmp_path, url)
        assert not summary.is_clean
        assert summary.ends == {"length": 2, "error": 2}
        assert summary.notes == ["2 requests ended in an error, the first: EngineCore encountered an issue"]
        log = read_log(tmp_path / "log.jsonl")
        assert log.is_partial
        broken = [event for event in log.of(Ended) if event.reason is Reason.ERROR]
        assert sorted((event.output_tokens, event.status) for event in broken) == [(0, 500), (2, 200)]

    asyncio.run(main())


def test_a_refusal_is_not_an_error(tmp_path: Path) -> None:
    async def strict(number: int, request: web.Request) -> web.StreamResponse:
        if number == 2:
            message = "The model `other` does not exist."
            return web.json_response({"error": {"message": message}}, status=404)
        return await good(number, request)

    async def main() -> None:
        async with stand_in(strict) as url:
            summary = await run_load(tmp_path, url)
        assert summary.ends == {"length": 3, "rejected": 1}
        assert not read_log(tmp_path / "log.jsonl").is_partial
        ended = read_log(tmp_path / "log.jsonl").of(Ended)
        assert "HTTP 404: The model `other` does not exist." in [event.message for event in ended]

    asyncio.run(main())


def test_endpoints_with_different_models_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with stand_in(good) as one, stand_in(good, card=CARD | {"id": "other"}) as two:
            with pytest.raises(LabError, match=r"different models: .* serves 'qwen3-demo', .* serves 'other'"):
                await run_load(tmp_path, one, two)

    asyncio.run(main())


def test_a_server_of_another_kind_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with stand_in(good, card=None) as url:
            with pytest.raises(LabError, match=r"names no model in /v1/models \(HTTP 404\)"):
                await run_load(tmp_path, url)

    asyncio.run(main())


def test_a_port_where_nothing_listens_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LabError, match=rf"endpoint {url} does not answer .*`vllm serve`.* on that port\?"):
            asyncio.run(run_load(tmp_path, url))
