"""Load over HTTP: replicas and their health, routing, retries before the first byte, what the client saw.

aiohttp, with no connection limit of its own: the open loop decides how many requests are out. A request is retried
on another replica only while nothing of an answer has come; from the first byte on, a failure is its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from nanolab.errors import LabError
from nanolab.load.identity import read_served_model, reveal_vllm
from nanolab.load.inprocess import client_stamp
from nanolab.load.router import Router
from nanolab.load.sender import Emit, send_open_loop
from nanolab.load.trace import TraceRequest
from nanolab.load.wire import Arrival, Call, Done, Refused, stream_native, stream_openai
from nanolab.serving.events import Chunk, Ended, Reason, Retried, Sent

__all__ = ["RemoteClient", "Replica", "connect"]

HEALTH_EVERY_S = 0.5
HEALTH_TIMEOUT_S = 5.0  # a server that takes connections and does not answer /health in this time hangs
CONNECT_S = 5.0
SILENCE_S = 300.0  # a stream that says nothing for this long is broken
# The last four are answers outside the protocol: no JSON, a field missing, an unknown reason, a wrong shape.
BROKEN = (aiohttp.ClientError, ConnectionError, TimeoutError, msgspec.MsgspecError, KeyError, ValueError, TypeError)


@dataclass
class Replica:
    url: str
    usable: bool = True
    model: str | None = None
    revealed: dict[str, Any] = field(default_factory=dict)  # /health of the lab's server; empty for others
    died: str | None = None  # why it stopped answering, if it ever did


@dataclass
class Progress:
    """What one request has come to so far."""

    tokens: int = 0
    counted: bool = True  # False once a chunk came without a token count
    cancelled: bool = False
    answered: bool = False  # the first byte has come: no retry from here on


@contextlib.asynccontextmanager
async def connect(urls: Sequence[str], api: str) -> AsyncIterator[tuple[aiohttp.ClientSession, list[Replica]]]:
    """A session and the checked replicas; LabError names an endpoint that does not answer or is not ready."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=15)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        replicas = [Replica(url.rstrip("/")) for url in urls]
        for replica in replicas:
            await _first_contact(http, replica, api)
        _check_one_model(replicas)
        yield http, replicas


async def _first_contact(http: aiohttp.ClientSession, replica: Replica, api: str) -> None:
    try:
        async with http.get(f"{replica.url}/health", timeout=_health_timeout()) as response:
            body = await response.read()
            if response.status != 200:
                raise LabError(f"endpoint {replica.url} is not ready (/health: {response.status}); wait or restart it")
        with contextlib.suppress(msgspec.MsgspecError):
            found = msgspec.json.decode(body)
            replica.revealed = found if isinstance(found, dict) else {}
        if api == "openai":
            served = await read_served_model(http, replica.url)
            replica.model = served.id
            replica.revealed = replica.revealed or await reveal_vllm(http, replica.url, served)
    except BROKEN as error:
        server = "a server (`vllm serve`, `run.py serve`)" if api == "openai" else "`run.py serve`"
        raise LabError(
            f"endpoint {replica.url} does not answer ({_what(error)}); is {server} running there, on that port?"
        ) from error


def _check_one_model(replicas: Sequence[Replica]) -> None:
    """Requests spread over different models would be averaged as if they were one."""
    names = {replica.url: replica.model for replica in replicas if replica.model is not None}
    if len(set(names.values())) > 1:
        listed = ", ".join(f"{url} serves {name!r}" for url, name in names.items())
        raise LabError(f"the endpoints serve different models: {listed}; start them with the same model and name")


@dataclass
class RemoteClient:
    """Sends trace requests to replicas and records what this client sees (observer: client)."""

    http: aiohttp.ClientSession
    replicas: list[Replica]
    router: Router
    api: str
    emit: Emit

    async def run(self, requests: Sequence[TraceRequest]) -> None:
        watching = asyncio.create_task(self._watch_health())
        try:
            await send_open_loop(requests, self.send_one)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    @property
    def deaths(self) -> list[str]:
        return [f"{replica.url}: {replica.died}" for replica in self.replicas if replica.died]

    async def send_one(self, request: TraceRequest, planned_ns: int) -> None:
        tried: set[int] = set()
        sent = False
        while True:
            usable = [i for i, replica in enumerate(self.replicas) if replica.usable and i not in tried]
            if not usable:
                self._end(request, None, Reason.ERROR, 0, "no replica is left that answers")
                return
            index, why = self.router.choose(request, usable)
            tried.add(index)
            replica = self.replicas[index]
            if not sent:
                self._emit_sent(request, planned_ns, replica, why)
                sent = True
            try:
                if await self._attempt(request, replica):
                    return
            finally:
                self.router.ended(request, index)

    async def _attempt(self, request: TraceRequest, replica: Replica) -> bool:
        """One try on one replica; False when nothing came back and another replica may be tried."""
        progress = Progress()
        try:
            await self._read(request, replica, progress)
        except Refused as refusal:
            if refusal.status == 503:
                replica.usable = False
                self._retry(request, replica, str(refusal))
                return False
            # The server's own failure is an error, not a refusal of this request.
            reason = Reason.ERROR if refusal.status >= 500 else Reason.REJECTED
            self._end(request, replica, reason, 0, f"HTTP {refusal.status}: {refusal}", refusal.status)
        except BROKEN as error:
            self._broken(replica, error)
            if not progress.answered:
                self._retry(request, replica, _what(error))
                return False
            self._end(request, replica, Reason.ERROR, _count(progress), f"the connection broke: {_what(error)}")
        return True

    async def _read(self, request: TraceRequest, replica: Replica, progress: Progress) -> None:
        call = Call(request.request_id, request.prompt_token_ids, request.output_length, request.request_class)
        if self.api == "openai":
            stream = stream_openai(self.http, replica.url, call, replica.model or "")
        else:
            stream = stream_native(self.http, replica.url, call)
        done: Done | None = None
        async with contextlib.aclosing(stream) as items:
            async for item in items:
                progress.answered = True
                if isinstance(item, Done):
                    done = item
                    continue
                self._arrived(request, replica, item, progress)
                if await self._cancel_if_due(request, replica, progress):
                    break
                if request.read_delay_ms:
                    await asyncio.sleep(request.read_delay_ms / 1e3)
        if done is None and progress.cancelled:
            done = Done(Reason.CANCELLED, "the client closed the stream")
        if done is None:
            done = Done(Reason.ERROR, "the stream ended without a terminal message")
        total = _count(progress) if done.output_tokens is None else done.output_tokens
        self._end(request, replica, done.reason, total, done.message, 200)

    def _arrived(self, request: TraceRequest, replica: Replica, item: Arrival, progress: Progress) -> None:
        progress.tokens += item.tokens or 0
        progress.counted = progress.counted and item.tokens is not None
        self.emit([Chunk(**client_stamp(request.request_id, replica.url), tokens=item.tokens)])

    async def _cancel_if_due(self, request: TraceRequest, replica: Replica, progress: Progress) -> bool:
        """Ask for the cancel once; True when the stream has to be closed because that is the only way to say it."""
        limit = request.cancel_after_tokens
        if limit is None or progress.cancelled or progress.tokens < limit:
            return False
        progress.cancelled = True
        if self.api == "openai":
            return True
        async with self.http.post(f"{replica.url}/cancel", json={"request_id": request.request_id}) as response:
            await response.read()
        return False

    async def _watch_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_EVERY_S)
            await asyncio.gather(*map(self._look_at, self.replicas))  # one that hangs does not hide the others

    async def _look_at(self, replica: Replica) -> None:
        try:
            async with self.http.get(f"{replica.url}/health", timeout=_health_timeout()) as response:
                replica.usable = response.status == 200
        except BROKEN as error:
            self._broken(replica, error)

    # ---- records -----------------------------------------------------------------------------------------

    def _broken(self, replica: Replica, error: BaseException) -> None:
        replica.usable = False
        replica.died = replica.died or _what(error)

    def _emit_sent(self, request: TraceRequest, planned_ns: int, replica: Replica, why: dict[str, Any]) -> None:
        sent = Sent(
            **client_stamp(request.request_id, replica.url),
            planned_ns=planned_ns,
            prompt_tokens=request.input_length,
            max_tokens=request.output_length,
            endpoint=replica.url,
            request_class=request.request_class,
            route=why,
        )
        self.emit([sent])

    def _retry(self, request: TraceRequest, replica: Replica, message: str) -> None:
        stamp = client_stamp(request.request_id, replica.url)
        self.emit([Retried(**stamp, endpoint=replica.url, message=message)])

    def _end(
        self,
        request: TraceRequest,
        replica: Replica | None,
        reason: Reason,
        tokens: int | None,
        message: str | None = None,
        status: int | None = None,
    ) -> None:
        stamp = client_stamp(request.request_id, replica.url if replica else None)
        self.emit([Ended(**stamp, reason=reason, output_tokens=tokens, status=status, message=message)])


def _health_timeout() -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S)


def _count(progress: Progress) -> int | None:
    return progress.tokens if progress.counted else None


def _what(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
