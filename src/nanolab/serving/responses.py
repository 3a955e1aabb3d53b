"""Sending a stream to a client that may leave, or stop reading, at any moment.

A disconnect is learned from the connection's own message, not by polling. Every send has a timeout, because neither
ASGI nor uvicorn has a write timeout. However it ends, `on_exit` runs once: that is where the request is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["ClientGone", "EventResponse", "until_disconnect"]

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; cancel it and raise ClientGone when the client disconnects first."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventResponse(Response):
    """Sends the chunks of an async generator as they come, one HTTP chunk each."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        media_type: str,
        *,
        send_timeout_s: float,
        on_stall: Callable[[], object],
        on_exit: Callable[[], object],
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type)
        del self.headers["content-length"]
        self._chunks = chunks
        self._send_timeout_s = send_timeout_s
        self._on_stall = on_stall
        self._on_exit = on_exit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._pump(send))
        except ClientGone:
            pass
        except TimeoutError:
            # The client keeps the connection open and reads nothing. Leaving the body unfinished makes the server
            # hang up, so a client that wakes later sees a broken answer, not a short one.
            self._on_stall()
        finally:
            self._on_exit()

    async def _pump(self, send: Send) -> None:
        async with contextlib.aclosing(self._chunks) as chunks, SendTimeout(self._send_timeout_s) as limit:
            limit.begin()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            limit.end()
            async for chunk in chunks:
                limit.begin()
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                limit.end()
            limit.begin()
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class SendTimeout:
    """TimeoutError in the `async with` once a send has taken `seconds`; the time between sends is free.

    One timer a response, which looks how old the present send is, instead of one a send: nearly every send is over
    at once, and a timer costs as much as the send.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began: float | None = None
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> SendTimeout:
        await self._timeout.__aenter__()
        self._look_after(self._seconds)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(*exc)  # raises TimeoutError if it was this timeout that cancelled

    def begin(self) -> None:
        self._began = self._loop.time()

    def end(self) -> None:
        self._began = None

    def _look_after(self, delay: float) -> None:
        self._timer = self._loop.call_later(delay, self._look)

    def _look(self) -> None:
        left = self._seconds if self._began is None else self._began + self._seconds - self._loop.time()
        if left > 0:
            self._look_after(left)
        else:
            self._timeout.reschedule(self._loop.time())
