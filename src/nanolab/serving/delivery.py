"""How events leave the owner thread: one handover a round, expanded into events on the other side.

The owner thread hands over what a round did as it stands (the engine's own lists, no event objects), so its cost
does not grow with the number of tokens. `Delivery` expands a round where there is time for it, on the event loop:
it feeds the request streams and then the listeners (event log, metrics).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from nanolab.serving.events import Event, Finished, Reason, Step, Submitted, Token
from nanolab.serving.lifecycle import CancelAnswer
from nanolab.serving.requests import GenerationRequest
from nanolab.serving.stream import Stream

__all__ = ["Delivery", "Handover", "Listener", "RoundOutput", "StepOutput", "Ticket"]

Listener = Callable[[list[Event]], None]


@dataclass(eq=False, slots=True)
class Ticket:
    """The worker's record of one open request. The owner thread changes it, except for `release_reason`."""

    request: GenerationRequest
    stream: Stream
    sequence: Any = None  # the engine's sequence, once admitted
    release_reason: Reason | None = None  # set when somebody asked for its end
    release_message: str | None = None
    end_reason: Reason | None = None  # set once, by Worker._finish
    end_message: str | None = None
    ended_ns: int = 0
    answers: list[Future[str]] = field(default_factory=list)  # cancel calls that wait for the outcome
    delivered: int = 0  # tokens delivered so far; the delivery side's own count

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def submitted(self, stamp: dict[str, Any]) -> Submitted:
        """The first event of its life; `stamp` holds the fields every engine event carries."""
        return Submitted(
            **stamp,
            prompt_tokens=len(self.request.prompt_token_ids),
            max_tokens=self.request.sampling.max_tokens,
            request_class=self.request.request_class,
        )

    def settle(self) -> None:
        """Answer the cancel calls that wait for the outcome, which is certain now."""
        cancelled = self.end_reason is Reason.CANCELLED
        for answer in self.answers:
            answer.set_result(CancelAnswer.CANCELLED if cancelled else CancelAnswer.ALREADY_FINISHED)
        self.answers.clear()


@dataclass(slots=True)
class StepOutput:
    """One engine step as the engine reported it, with the queue lengths after it."""

    record: Any  # nanolab.serving.engine.StepRecord
    started_ns: int
    ended_ns: int
    waiting: int
    running: int
    free_blocks: int


@dataclass(slots=True)
class RoundOutput:
    """What one scheduling round did, in order: openings (submitted, admitted), the step, endings."""

    round: int
    step: int
    openings: list[tuple[Ticket, Event]] = field(default_factory=list)
    step_output: StepOutput | None = None
    endings: list[Ticket] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.openings or self.endings or self.step_output)


class Handover:
    """Passes rounds from the owner thread to the event loop, waking the loop once however many rounds wait."""

    def __init__(self, deliver: Callable[[RoundOutput], None], loop: asyncio.AbstractEventLoop | None) -> None:
        self._deliver = deliver
        self._loop = loop
        self._rounds: deque[RoundOutput] = deque()
        self._delivering = threading.Lock()
        self._wake_is_due = False

    def put(self, output: RoundOutput) -> None:
        """Without a loop, or after it has closed, the round is delivered at once on the calling thread."""
        self._rounds.append(output)
        if self._loop is None:
            self._drain()
        elif not self._wake_is_due:
            self._wake_is_due = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed: nobody reads the streams, the log still wants the events
                self._drain()

    def _drain(self) -> None:
        # NOTE: the flag goes down before the queue is emptied: a round put in between wakes the loop again.
        self._wake_is_due = False
        # NOTE: whoever fails to get the lock leaves the round to the holder, who looks again after letting go.
        while self._rounds and self._delivering.acquire(blocking=False):
            try:
                while self._rounds:
                    self._deliver(self._rounds.popleft())
            finally:
                self._delivering.release()


class Delivery:
    """Turns rounds into events, in order; never runs twice at once."""

    def __init__(self, worker_id: str, on_overflow: Callable[[Ticket], None], listeners: tuple[Listener, ...]) -> None:
        self._worker_id = worker_id
        self._on_overflow = on_overflow
        self.listeners = list(listeners)
        self._by_seq: dict[int, Ticket] = {}

    def __call__(self, output: RoundOutput) -> None:
        events: list[Event] = []
        for ticket, event in output.openings:
            if ticket.sequence is not None:
                self._by_seq[ticket.sequence.seq_id] = ticket
            ticket.stream.push(event)
            events.append(event)
        if output.step_output is not None:
            self._deliver_step(output, output.step_output, events)
        for ticket in output.endings:
            if ticket.sequence is not None:
                self._by_seq.pop(ticket.sequence.seq_id, None)
            end = self._finished_event(output, ticket)
            ticket.stream.push(end)
            events.append(end)
        for listener in self.listeners:
            listener(events)

    def _deliver_step(self, output: RoundOutput, step: StepOutput, events: list[Event]) -> None:
        events.append(self._step_event(output, step))
        for sequence, token_id in step.record.accepted:
            ticket = self._by_seq[sequence.seq_id]
            ticket.delivered += 1
            token = Token(
                request_id=ticket.request.request_id,
                worker_id=self._worker_id,
                round=output.round,
                step=output.step,
                t_ns=step.ended_ns,
                index=ticket.delivered,
                token=token_id,
            )
            events.append(token)
            if not ticket.stream.push(token):
                self._on_overflow(ticket)

    def _finished_event(self, output: RoundOutput, ticket: Ticket) -> Finished:
        """`output_tokens` counts the token events, so a log's sums agree whatever the engine did last."""
        assert ticket.end_reason is not None
        return Finished(
            request_id=ticket.request_id,
            worker_id=self._worker_id,
            round=output.round,
            step=output.step,
            t_ns=ticket.ended_ns,
            reason=ticket.end_reason,
            output_tokens=ticket.delivered,
            message=ticket.end_message,
        )

    def _step_event(self, output: RoundOutput, step: StepOutput) -> Step:
        by_seq = self._by_seq
        return Step(
            request_id=None,
            worker_id=self._worker_id,
            round=output.round,
            step=output.step,
            t_ns=step.ended_ns,
            phase=step.record.phase,
            started_ns=step.started_ns,
            batch=[
                (by_seq[seq_id].request.request_id, total, cached, scheduled, list(blocks))
                for seq_id, total, cached, scheduled, blocks in map(_row, step.record.batch)
            ],
            waiting=step.waiting,
            running=step.running,
            free_blocks=step.free_blocks,
        )


def _row(state: Any) -> tuple[int, int, int, int, Any]:
    return state.seq_id, state.total, state.cached, state.scheduled, state.blocks
