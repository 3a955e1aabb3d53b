"""Load without a network: the Worker in this process, fed by time (wall) or by scheduling round (round).

Wall mode is an open-loop measurement; the client side is this process's event loop. Round mode runs everything on
the owner thread: requests enter when a given round begins, cancels happen at a given token count, and the same trace
gives the same events every time. It shows mechanism and is never reported as latency.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanolab.load.sender import Emit, send_open_loop
from nanolab.load.trace import TraceRequest
from nanolab.serving.engine import EngineFacts, SamplingSpec
from nanolab.serving.events import Chunk, Ended, Event, Finished, Reason, Sent, Token, now_ns
from nanolab.serving.requests import GenerationRequest, RefusedRequest
from nanolab.serving.stream import Stream
from nanolab.serving.worker import State, Worker

__all__ = ["InProcessClient", "RoundInjector", "client_stamp", "generation_request", "round_of", "run_rounds"]


def generation_request(request: TraceRequest) -> GenerationRequest:
    """A trace request fixes its output length, so the model's own end of sequence is ignored."""
    sampling = SamplingSpec(max_tokens=request.output_length, ignore_eos=True)
    return GenerationRequest(request.request_id, request.prompt_token_ids, sampling, request.request_class)


@dataclass
class InProcessClient:
    """Sends trace requests to a Worker and records what their readers see (observer: client)."""

    worker: Worker
    emit: Emit

    async def run(self, requests: Sequence[TraceRequest]) -> None:
        await send_open_loop(requests, self.send_one)

    async def send_one(self, request: TraceRequest, planned_ns: int) -> None:
        sent = Sent(
            **self._stamp(request),
            planned_ns=planned_ns,
            prompt_tokens=request.input_length,
            max_tokens=request.output_length,
            request_class=request.request_class,
        )
        self.emit([sent])
        try:
            stream = self.worker.submit(generation_request(request))
        except RefusedRequest as refusal:
            self._end(request, Reason.REJECTED, 0, str(refusal))
            return
        seen = await self._read(request, stream)
        assert stream.finished is not None
        self._end(request, stream.finished.reason, seen, stream.finished.message)

    async def _read(self, request: TraceRequest, stream: Stream) -> int:
        """Read until the terminal event; returns the tokens this reader has seen."""
        seen, cancelled = 0, False
        while events := await stream.take():
            tokens = sum(isinstance(event, Token) for event in events)
            if tokens:
                seen += tokens
                self.emit([Chunk(**self._stamp(request), tokens=tokens)])
            if request.cancel_after_tokens is not None and seen >= request.cancel_after_tokens and not cancelled:
                cancelled = True
                self.worker.cancel(request.request_id)
            if request.read_delay_ms:
                await asyncio.sleep(request.read_delay_ms / 1e3)
        return seen

    def _end(self, request: TraceRequest, reason: Reason, seen: int, message: str | None) -> None:
        self.emit([Ended(**self._stamp(request), reason=reason, output_tokens=seen, message=message)])

    def _stamp(self, request: TraceRequest) -> dict[str, Any]:
        return client_stamp(request.request_id, self.worker.worker_id)


def client_stamp(request_id: str, worker_id: str | None) -> dict[str, Any]:
    """The fields every event carries, as a client knows them: no round, no step."""
    return {
        "request_id": request_id,
        "worker_id": worker_id,
        "round": None,
        "step": None,
        "t_ns": now_ns(),
        "observer": "client",
    }


def round_of(request: TraceRequest, round_ms: float) -> int:
    """The round that a request enters in, counted from 1: its own `round`, else its time in units of `round_ms`."""
    return request.round if request.round is not None else 1 + int(request.timestamp / round_ms)


@dataclass
class RoundInjector:
    """The Worker's `before_round` hook: submits and cancels at exact rounds, on the owner thread.

    Warm-up requests run first; the trace's round 1 is the first round after they have ended.
    """

    requests: Sequence[TraceRequest]
    warmup: Sequence[TraceRequest] = ()
    round_ms: float = 20.0
    done: threading.Event = field(default_factory=threading.Event)
    refusals: list[str] = field(default_factory=list)
    worker: Worker | None = None
    go: threading.Event = field(default_factory=threading.Event)  # set when the log is open
    _streams: dict[str, Stream] = field(default_factory=dict)
    _tokens: dict[str, int] = field(default_factory=dict)
    _next: int = 0
    _base: int | None = None

    def __post_init__(self) -> None:
        self.requests = sorted(self.requests, key=lambda request: round_of(request, self.round_ms))

    def __call__(self, current_round: int) -> bool:
        self.go.wait()
        assert self.worker is not None, "set RoundInjector.worker before starting the Worker"
        if self._base is None and not self._warmed_up(current_round):
            return True
        assert self._base is not None
        while self._next < len(self.requests):
            request = self.requests[self._next]
            if round_of(request, self.round_ms) > current_round - self._base:
                break
            self._submit(request)
            self._next += 1
        more = self._cancel_due() or self._next < len(self.requests)
        if not more:
            self.done.set()
        return more

    def _warmed_up(self, current_round: int) -> bool:
        if not self._streams and self.warmup:
            for request in self.warmup:
                self._submit(request)
        if any(stream.finished is None for stream in self._streams.values()):
            return False
        self._streams.clear()
        self._base = current_round - 1
        return True

    def _submit(self, request: TraceRequest) -> None:
        assert self.worker is not None
        try:
            self._streams[request.request_id] = self.worker.submit(generation_request(request))
        except RefusedRequest as refusal:
            self.refusals.append(f"{request.request_id}: {refusal}")

    def _cancel_due(self) -> bool:
        """Cancel what has its tokens; True while some request may still need it."""
        assert self.worker is not None
        waiting = False
        for request in self.requests[: self._next]:
            stream = self._streams.get(request.request_id)
            if request.cancel_after_tokens is None or stream is None or stream.finished is not None:
                continue
            events: list[Event] = stream.take_nowait()
            seen = self._tokens.get(request.request_id, 0) + sum(isinstance(event, Token) for event in events)
            self._tokens[request.request_id] = seen
            if seen >= request.cancel_after_tokens:
                self.worker.cancel(request.request_id)
            elif not any(isinstance(event, Finished) for event in events):
                waiting = True
        return waiting


def run_rounds(
    worker: Worker, injector: RoundInjector, on_started: Callable[[EngineFacts], None], drain_s: float
) -> None:
    """Start the worker, let the injector play its trace, and drain."""
    injector.worker = worker
    try:
        on_started(worker.start())
    except BaseException:
        injector.requests = injector.warmup = ()
        raise
    finally:
        injector.go.set()
    while not injector.done.wait(0.05):
        if worker.state is State.DEAD:
            break
    worker.close(drain_s)
