"""The bounded event stream of one request, from the delivery side to whoever reads the request.

Policy for a reader that stops reading: a stream holds up to `capacity` unread tokens. The token that finds it full
is not stored, the request is released with reason `slow_consumer` at the engine's next safe boundary, and the
terminal event always fits. So memory is bounded, the engine thread never waits, and no other request notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from nanolab.serving.events import Event, Finished, Token

__all__ = ["Stream"]


class Stream:
    """Written by the delivery side only, read by one consumer; both on the same event loop (or none at all)."""

    def __init__(self, request_id: str, capacity: int) -> None:
        self.request_id = request_id
        self.capacity = capacity
        self.overflowed = False
        self.finished: Finished | None = None
        self.taken_tokens = 0
        self._unread: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None

    def push(self, event: Event) -> bool:
        """Store an event and wake the reader; False when a token had to be left out because nobody reads."""
        if isinstance(event, Token):
            if self.overflowed or len(self._unread) >= self.capacity:
                self.overflowed = True
                return False
        elif isinstance(event, Finished):
            self.finished = event
        self._unread.append(event)
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return True

    def take_nowait(self) -> list[Event]:
        """Everything unread, possibly nothing."""
        events, self._unread = self._unread, []
        return events

    async def take(self) -> list[Event]:
        """Everything unread; waits for at least one event. Empty only after the terminal event was taken."""
        while not self._unread and self.finished is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.take_nowait()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while events := await self.take():
            for event in events:
                yield event
