"""A live server on a real socket, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from nanolab.serving.engine import CreateEngine
from nanolab.serving.events import Event
from nanolab.serving.server import ServeOptions, serve
from nanolab.serving.simulated import SimulatedConfig, SimulatedEngine, SimulatedHooks
from nanolab.serving.worker import Worker

from .helpers import WAIT_S


@dataclass
class Live:
    url: str
    worker: Worker
    http: aiohttp.ClientSession
    stop: asyncio.Event
    task: asyncio.Task[Any]
    events: list[Event] = field(default_factory=list)

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self.http.post(self.url + path, data=data) as response:
            return response.status, msgspec.json.decode(await response.read())

    async def post_raw(self, path: str, data: bytes) -> tuple[int, bytes]:
        async with self.http.post(self.url + path, data=data) as response:
            return response.status, await response.read()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path) as response:
            return response.status, msgspec.json.decode(await response.read())

    async def generate(self, **body: Any) -> list[dict[str, Any]]:
        """Every line of a /generate answer."""
        async with self.http.post(self.url + "/generate", data=msgspec.json.encode(body)) as response:
            data = await response.read()
            assert response.status == 200, data
            return [msgspec.json.decode(line) for line in data.splitlines()]

    async def sse(self, path: str, body: Any) -> list[Any]:
        """The `data:` messages of a streamed answer, [DONE] as that string."""
        async with self.http.post(self.url + path, data=msgspec.json.encode(body)) as response:
            text = (await response.read()).decode()
            assert response.status == 200, text
        messages = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
        return [part if part == "[DONE]" else msgspec.json.decode(part) for part in messages]

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def live_server(
    create: CreateEngine | None = None,
    *,
    config: SimulatedConfig | None = None,
    hooks: SimulatedHooks | None = None,
    **options: Any,
) -> AsyncIterator[Live]:
    stop = asyncio.Event()
    events: list[Event] = []
    ready: asyncio.Future[tuple[str, Worker]] = asyncio.get_running_loop().create_future()
    settings = ServeOptions(port=0, model_id="simulated", **options)
    running = asyncio.create_task(
        serve(
            create or (lambda: SimulatedEngine(config, hooks)),
            settings,
            listeners=(events.extend,),
            on_ready=lambda url, worker: ready.set_result((url, worker)),
            stop=stop,
        )
    )
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_S)
    if running.done():
        await running
    url, worker = ready.result()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=WAIT_S)) as http:
        try:
            yield Live(url, worker, http, stop, running, events)
        finally:
            stop.set()
            await asyncio.wait_for(running, WAIT_S)
