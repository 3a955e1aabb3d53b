"""The Worker: one thread creates and owns the engine, every other thread sends it messages.

    any thread      submit() reserves a place in the bounded queue, or is refused; cancel() asks for an end
    owner thread    _run: release what was asked for, admit, one engine step, hand the round over; repeat
    event loop      delivery.py expands each round into events for the streams, the log and the metrics

Every change to a request's state happens on the owner thread between two engine steps (the safe boundary), so a
cancel can never meet a half-done step. `_finish` is the only place where a request ends, and it ends once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from nanolab.errors import LabError
from nanolab.serving.delivery import Delivery, Handover, Listener, RoundOutput, StepOutput, Ticket
from nanolab.serving.engine import CreateEngine, Engine, EngineFacts
from nanolab.serving.events import Admitted, Reason, now_ns
from nanolab.serving.lifecycle import CancelAnswer, ClosedEngine, RecentIds, State, WorkerLimits, answered, promise
from nanolab.serving.requests import (
    DuplicateRequest,
    GenerationRequest,
    NotServing,
    QueueFull,
    RefusedRequest,
    check_request,
)
from nanolab.serving.stream import Stream

__all__ = ["CancelAnswer", "State", "Worker", "WorkerLimits"]

T = TypeVar("T")
IDLE_CHECK_S = 1.0  # how often an idle owner asks whether the engine is still whole
EXIT_GRACE_S = 5.0  # after the drain deadline, for the step in progress and the engine's own close


class Worker:
    """Owns one engine. Start it, submit to it from any thread, close it; then a new one can be started."""

    def __init__(
        self,
        create_engine: CreateEngine,
        limits: WorkerLimits | None = None,
        *,
        worker_id: str = "worker-0",
        loop: asyncio.AbstractEventLoop | None = None,
        listeners: tuple[Listener, ...] = (),
        before_round: Callable[[int], bool] | None = None,
    ) -> None:
        """`loop` is where streams are read (None: deliver on the owner thread). `before_round` is the round-mode
        injector: called on the owner thread as each round begins, True while it has something left to inject."""
        self.worker_id = worker_id
        self.limits = limits or WorkerLimits()
        self._create_engine = create_engine
        self._before_round = before_round
        self._delivery = Delivery(worker_id, self._release_slow_reader, listeners)
        self._handover = Handover(self._delivery, loop)
        self._thread = threading.Thread(target=self._run, name=f"{worker_id}-owner", daemon=True)
        self._started: Future[EngineFacts] = Future()
        self._facts: EngineFacts | None = None
        self._kv_usage = 0.0

        # Shared between threads, guarded by `_mail`.
        self._mail = threading.Condition()
        self._state = State.STARTING
        self._failure: str | None = None
        self._open: dict[str, Ticket] = {}  # every accepted request without a delivered end
        self._queue: deque[Ticket] = deque()  # of those, the ones that wait for admission
        self._releases: deque[Ticket] = deque()  # of those, the ones somebody asked to end
        self._calls: deque[Callable[[Engine], None]] = deque()
        self._finished_ids = RecentIds()
        self._deadline = float("inf")  # of a drain, on time.monotonic
        self._abandoned = False  # close() gave up waiting for the owner thread; what it still does is not published

        # The owner thread's own.
        self._active: dict[int, Ticket] = {}  # by the engine's seq_id
        self._output = RoundOutput(round=0, step=0)
        self._injecting = before_round is not None

    # ---- any thread: messages ----------------------------------------------------------------------------

    def start(self) -> EngineFacts:
        """Start the owner thread and wait for its engine; raises what creating the engine raised."""
        self._thread.start()
        return self._started.result()

    def add_listener(self, listener: Listener) -> None:
        """Give `listener` every event from now on; call it before the first request."""
        self._delivery.listeners.append(listener)

    def submit(self, request: GenerationRequest) -> Stream:
        """Reserve a place in the queue and return the request's stream, or raise a RefusedRequest."""
        check_request(request, self.facts)
        ticket = Ticket(request, Stream(request.request_id, self.limits.stream_capacity))
        with self._mail:
            if request.request_id in self._open:
                raise DuplicateRequest(
                    f"request_id {request.request_id!r} is in use by an open request; choose another"
                )
            self._publish_opening(ticket)
            try:
                self._require_place()
            except RefusedRequest as refusal:
                self._publish_refusal(ticket, str(refusal))
                raise
            self._open[request.request_id] = ticket
            self._queue.append(ticket)
            self._mail.notify()
        return ticket.stream

    def cancel(self, request_id: str, reason: Reason = Reason.CANCELLED, message: str | None = None) -> Future[str]:
        """Ask for a request's end, in whatever state it is. The answer comes when the outcome is certain."""
        answer: Future[str] = promise()
        with self._mail:
            ticket = self._open.get(request_id)
            if ticket is None:
                known = request_id in self._finished_ids
                answer.set_result(CancelAnswer.ALREADY_FINISHED if known else CancelAnswer.UNKNOWN)
            else:
                ticket.answers.append(answer)
                self._ask_release(ticket, reason, message)
        return answer

    def call(self, function: Callable[[Engine], T]) -> Future[T]:
        """Run `function(engine)` on the owner thread at the next safe boundary."""
        run, answer = answered(function)
        with self._mail:
            if self._state in (State.DEAD, State.CLOSED):
                raise NotServing(f"worker {self.worker_id} is {self._state}")
            self._calls.append(run)
            self._mail.notify()
        return answer

    def close(self, drain_s: float = 0.0) -> None:
        """Refuse new requests, drain for `drain_s` seconds, end the rest with `shutdown`, free everything."""
        with self._mail:
            if self._state in (State.STARTING, State.SERVING):
                self._state = State.DRAINING
            self._deadline = min(self._deadline, time.monotonic() + drain_s)
            self._mail.notify()
        if self._thread.ident is None:  # never started
            self._state = State.CLOSED
            return
        self._thread.join(max(0.0, self._deadline - time.monotonic()) + EXIT_GRACE_S)
        if self._thread.is_alive():
            self._abandon()

    @property
    def facts(self) -> EngineFacts:
        if self._facts is None:
            raise NotServing(f"worker {self.worker_id} is {self._state}: it has no engine")
        return self._facts

    @property
    def state(self) -> State:
        return self._state

    @property
    def failure(self) -> str | None:
        """Why the worker is dead, or what went wrong while it closed."""
        return self._failure

    @property
    def queue_lengths(self) -> tuple[int, int]:
        """(waiting for admission, active)."""
        return len(self._queue), len(self._active)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use after the latest step or release; 0 without an engine."""
        return self._kv_usage

    # ---- owner thread: the loop --------------------------------------------------------------------------

    # --8<-- [start:run]
    def _run(self) -> None:
        """Create the engine, serve until closed, and leave nothing behind."""
        engine: Engine | None = None
        try:
            engine = self._create_engine()
            self._begin_serving(engine)
            while self._wait_for_work(engine):
                self._begin_round()
                self._release_pending(engine)
                self._admit(engine)
                self._step(engine)
                self._publish_round()
        except BaseException as error:  # the engine is in an unknown state: nothing of it may be used again
            self._fail(error)
        finally:
            self._free(engine)

    # --8<-- [end:run]

    def _begin_serving(self, engine: Engine) -> None:
        self._facts = EngineFacts.of(engine)
        with self._mail:
            if self._state is State.STARTING:
                self._state = State.SERVING
        self._started.set_result(self._facts)

    def _wait_for_work(self, engine: Engine) -> bool:
        """Block while there is nothing to do; False when drained, an error if the engine broke meanwhile."""
        with self._mail:
            while not self._abandoned:
                if time.monotonic() >= self._deadline:
                    for ticket in self._open.values():
                        self._ask_release(ticket, Reason.SHUTDOWN, "the drain deadline passed")
                if self._queue or self._releases or self._calls or engine.has_work():
                    return True
                if self._state is State.DRAINING:
                    return False
                if self._injecting:
                    return True
                self._mail.wait(IDLE_CHECK_S)
                engine.check()
        return False

    def _begin_round(self) -> None:
        self._output = RoundOutput(round=self._output.round + 1, step=self._output.step)
        if self._injecting and self._before_round is not None:
            self._injecting = self._before_round(self._output.round)

    # --8<-- [start:release]
    def _release_pending(self, engine: Engine) -> None:
        """The safe boundary: end every request somebody asked to end, and run the calls that wait for it."""
        with self._mail:
            releases, self._releases = self._releases, deque()
            calls, self._calls = self._calls, deque()
        for ticket in releases:
            if ticket.end_reason is None and ticket.release_reason is not None:
                self._leave_engine(ticket, engine)
                self._finish(ticket, ticket.release_reason, ticket.release_message)
        for call in calls:
            call(engine)

    # --8<-- [end:release]

    def _leave_engine(self, ticket: Ticket, engine: Engine) -> None:
        """Take a request out of the queue, or out of the engine with its blocks returned."""
        if ticket.sequence is None:
            with self._mail, contextlib.suppress(ValueError):  # _admit may be the one that took it out
                self._queue.remove(ticket)
        else:
            engine.abort(ticket.sequence)
            del self._active[ticket.sequence.seq_id]

    # --8<-- [start:admit]
    def _admit(self, engine: Engine) -> None:
        """Pass waiting requests to the engine, oldest first, while fewer than `max_active` are in it."""
        while len(self._active) < self.limits.max_active and (ticket := self._take_queued()):
            active = len(self._active)
            try:
                ticket.sequence = engine.add(ticket.request.prompt_token_ids, ticket.request.sampling)
            except (ValueError, LabError) as refusal:  # the engine's own check; the next request is unaffected
                self._finish(ticket, Reason.REJECTED, str(refusal))
                continue
            self._active[ticket.sequence.seq_id] = ticket
            self._output.openings.append((ticket, Admitted(**self._stamp(ticket), active=active)))

    # --8<-- [end:admit]

    def _take_queued(self) -> Ticket | None:
        with self._mail:
            return self._queue.popleft() if self._queue else None

    def _step(self, engine: Engine) -> None:
        """One engine step. A round that only released or injected something has none."""
        self._kv_usage = 1 - engine.free_blocks / engine.num_blocks
        if not engine.has_work():
            return
        started = now_ns()
        record = engine.step()
        self._output.step += 1
        waiting, running = len(engine.waiting), len(engine.running)
        self._kv_usage = 1 - engine.free_blocks / engine.num_blocks
        self._output.step_output = StepOutput(record, started, now_ns(), waiting, running, engine.free_blocks)
        for sequence in record.finished:
            ticket = self._active.pop(sequence.seq_id)
            self._finish(ticket, Reason(engine.finish_reason(sequence) or "error"))

    # --8<-- [start:finish]
    def _finish(self, ticket: Ticket, reason: Reason, message: str | None = None) -> None:
        """The one place where a request ends. Its id is free again once the end has been handed over."""
        assert ticket.end_reason is None, f"{ticket.request_id} ended as {ticket.end_reason} and again as {reason}"
        ticket.end_reason, ticket.end_message, ticket.ended_ns = reason, message, now_ns()
        self._output.endings.append(ticket)

    # --8<-- [end:finish]

    def _publish_round(self) -> None:
        """Hand the round over in one piece, then let go of what ended in it."""
        output, self._output = self._output, RoundOutput(self._output.round, self._output.step)
        with self._mail:
            if output and not self._abandoned:
                self._handover.put(output)
                for ticket in output.endings:
                    self._forget(ticket)

    # ---- the ways out ------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """The engine raised: every open request ends with a reason, and the worker says why it is dead."""
        self._failure = f"{type(error).__name__}: {error}"
        with self._mail:
            self._state = State.DEAD
        if self._started.done():
            self._end_all(Reason.ERROR, f"the engine failed: {self._failure}")
        else:
            self._started.set_exception(error)

    def _end_all(self, reason: Reason, message: str) -> None:
        with self._mail:
            self._queue.clear()
            tickets = [ticket for ticket in self._open.values() if ticket.end_reason is None]
        for ticket in tickets:
            self._finish(ticket, reason, message)
        self._publish_round()

    def _free(self, engine: Engine | None) -> None:
        """Let go of the engine; answer whoever still waits for a safe boundary."""
        self._active.clear()
        self._kv_usage = 0.0
        if engine is not None:
            try:
                engine.close()
            except Exception as error:
                self._failure = self._failure or f"closing the engine: {type(error).__name__}: {error}"
        with self._mail:
            self._state = State.DEAD if self._state is State.DEAD else State.CLOSED
            calls, self._calls = self._calls, deque()
        for call in calls:
            call(ClosedEngine())

    def _abandon(self) -> None:
        """A step that does not return cannot be interrupted; its requests still get their end, from here."""
        with self._mail:
            self._abandoned = True
            self._state = State.DEAD
            self._failure = "the engine step in progress did not return before the deadline"
            output = RoundOutput(self._output.round, self._output.step, endings=list(self._open.values()))
            for ticket in output.endings:
                ticket.end_reason, ticket.end_message, ticket.ended_ns = Reason.SHUTDOWN, self._failure, now_ns()
            self._handover.put(output)
            for ticket in output.endings:
                self._forget(ticket)

    # ---- shared helpers (call with `_mail` held) ---------------------------------------------------------

    def _require_place(self) -> None:
        if self._state is not State.SERVING:
            raise NotServing(f"worker {self.worker_id} is {self._state}; send the request to another one")
        if len(self._queue) >= self.limits.max_queued:
            raise QueueFull(f"the queue holds {len(self._queue)} of {self.limits.max_queued} requests; try again later")

    def _ask_release(self, ticket: Ticket, reason: Reason, message: str | None) -> None:
        """The first to ask decides the reason."""
        if ticket.release_reason is None:
            ticket.release_reason, ticket.release_message = reason, message
            self._releases.append(ticket)
            self._mail.notify()

    def _forget(self, ticket: Ticket) -> None:
        self._open.pop(ticket.request_id, None)
        self._finished_ids.add(ticket.request_id)
        ticket.settle()

    def _release_slow_reader(self, ticket: Ticket) -> None:
        with self._mail:
            if ticket.end_reason is None:
                message = f"{self.limits.stream_capacity} tokens waited unread"
                self._ask_release(ticket, Reason.SLOW_CONSUMER, message)

    def _publish_opening(self, ticket: Ticket) -> None:
        """Published before the owner can see the request, so `submitted` comes first."""
        event = ticket.submitted(self._stamp(ticket))
        self._handover.put(RoundOutput(self._output.round, self._output.step, openings=[(ticket, event)]))

    def _publish_refusal(self, ticket: Ticket, message: str) -> None:
        ticket.end_reason, ticket.end_message, ticket.ended_ns = Reason.REJECTED, message, now_ns()
        self._handover.put(RoundOutput(self._output.round, self._output.step, endings=[ticket]))

    def _stamp(self, ticket: Ticket) -> dict[str, Any]:
        """The fields every engine event carries."""
        return {
            "request_id": ticket.request_id,
            "worker_id": self.worker_id,
            "round": self._output.round,
            "step": self._output.step,
            "t_ns": now_ns(),
        }
