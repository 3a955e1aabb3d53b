"""Logs and stand-in servers for the load tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp

from nanolab.load.remote import RemoteClient, Replica
from nanolab.load.router import Router
from nanolab.load.trace import TraceRequest
from nanolab.serving.events import Chunk, Ended, Event, Retried, Sent

WAIT_S = 20.0


def trace_request(name: str, at_ms: float = 0.0, prompt: int = 4, output: int = 6, **more: Any) -> TraceRequest:
    ids = [(sum(name.encode()) + index) % 256 for index in range(prompt)]
    return TraceRequest(
        request_id=name, timestamp=at_ms, input_length=prompt, output_length=output, prompt_token_ids=ids, **more
    )


def by_request(events: list[Event]) -> dict[str, list[Event]]:
    lives: dict[str, list[Event]] = {}
    for event in events:
        if event.request_id is not None:
            lives.setdefault(event.request_id, []).append(event)
    return lives


def check_client_lives(events: list[Event]) -> None:
    """sent, then chunks and retries, then exactly one ended, nothing after it."""
    for request_id, life in by_request(events).items():
        assert isinstance(life[0], Sent), request_id
        assert [index for index, event in enumerate(life) if isinstance(event, Ended)] == [len(life) - 1], request_id
        assert all(isinstance(event, Chunk | Retried) for event in life[1:-1]), request_id


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@contextlib.asynccontextmanager
async def stand_in(on_generate: Handler) -> AsyncIterator[str]:
    """A server whose /health is fine and whose /generate does what the test says."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /health"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
                await writer.drain()
            else:
                await on_generate(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    async with server:
        yield f"http://{host}:{port}"


@contextlib.asynccontextmanager
async def client_for(
    urls: list[str], router: str = "round_robin", api: str = "native"
) -> AsyncIterator[tuple[RemoteClient, list[Event]]]:
    events: list[Event] = []
    timeout = aiohttp.ClientTimeout(total=WAIT_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        replicas = [Replica(url, model="simulated") for url in urls]
        yield RemoteClient(http, replicas, Router(router, len(urls)), api, events.extend), events
