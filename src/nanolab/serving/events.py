"""The event protocol: one typed record for everything that happens to a request, and for every engine step.

An event log is JSONL. Its first line is a `run` header, its last an `end` line that counts the events, so that a
log cut short is seen to be partial. Between them each request goes through

    submitted, admitted, token 1 .. N, exactly one finished with a reason        (observer: engine)
    sent, chunk ..., exactly one ended with a reason                             (observer: client)

A prefill chunk in the middle of a prompt has a `step` record and no token event. All times are one monotonic
clock (`now_ns`), which processes of one host share, and which says nothing about the time of day.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Any

import msgspec

__all__ = [
    "SCHEMA",
    "Admitted",
    "Chunk",
    "EndOfRun",
    "Ended",
    "Event",
    "Finished",
    "Reason",
    "Retried",
    "RunHeader",
    "Sent",
    "Step",
    "Submitted",
    "Token",
    "now_ns",
]

SCHEMA = "nanolab.events/1"
now_ns = time.monotonic_ns


class Reason(StrEnum):
    """Why a request ended. Every request ends with exactly one of these."""

    LENGTH = "length"  # max_tokens reached
    EOS = "eos"  # the model ended it
    STOP = "stop"  # a stop token or stop string
    CANCELLED = "cancelled"  # asked for, or the client went away
    REJECTED = "rejected"  # refused before it was admitted
    SLOW_CONSUMER = "slow_consumer"  # its reader stopped reading
    KV_EXHAUSTED = "kv_exhausted"  # it can never get its next block
    ERROR = "error"  # the engine, or on a client the connection, failed
    SHUTDOWN = "shutdown"  # the drain deadline passed

    @property
    def is_complete(self) -> bool:
        """Whether the request got all the output it was going to have."""
        return self in (Reason.LENGTH, Reason.EOS, Reason.STOP)


class RunHeader(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="run"):
    """First line of a log: what ran, and the marks that keep mechanism evidence out of latency tables."""

    run_id: str
    schema: str = SCHEMA
    clock: str = "time.monotonic_ns"
    started_at: str
    versions: dict[str, str] = {}
    trace_sha256: str | None = None
    simulated: bool = False  # the engine was simulated
    profile: bool = False  # a profiler was attached
    round_injected: bool = False  # arrivals by scheduling round, not by time
    evidence: str | None = None  # an evidence type; null where a remote endpoint does not reveal it
    warmup: list[str] = []  # request ids to leave out of every statistic
    lateness_limit_ms: float = 20.0  # a sender later than this makes the run invalid as a measurement
    config: dict[str, Any] = {}  # null: not revealed by a remote endpoint
    engine: dict[str, Any] | None = None
    model: dict[str, Any] | None = None
    device: dict[str, Any] | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Fields that every event carries. `round` counts the owner's scheduling rounds, `step` the engine's steps."""

    request_id: str | None
    worker_id: str | None
    round: int | None
    step: int | None
    t_ns: int
    observer: str = "engine"


class Submitted(Event, frozen=True, kw_only=True, tag="submitted", rename={"request_class": "class"}):
    prompt_tokens: int
    max_tokens: int
    request_class: str | None = None


class Admitted(Event, frozen=True, kw_only=True, tag="admitted"):
    active: int  # requests already active when this one was admitted
    diagnostics: dict[str, int] = {}  # room for a learner's own fields


class Token(Event, frozen=True, kw_only=True, tag="token", gc=False):
    index: int  # 1 for the first output token
    token: int
    text: str | msgspec.UnsetType = msgspec.UNSET  # only on the wire, and only when asked for


class Finished(Event, frozen=True, kw_only=True, tag="finished"):
    reason: Reason
    output_tokens: int
    message: str | None = None


class Step(Event, frozen=True, kw_only=True, tag="step"):
    """One engine step; `t_ns` is its end. Each batch row is [request_id, total, cached, scheduled, blocks]."""

    phase: str
    started_ns: int
    batch: list[tuple[str, int, int, int, list[int]]]
    waiting: int
    running: int
    free_blocks: int


class Sent(Event, frozen=True, kw_only=True, tag="sent", rename={"request_class": "class"}):
    """The client sent a request; `planned_ns` is when the trace said it should."""

    planned_ns: int
    prompt_tokens: int | None  # null: the prompt was text
    max_tokens: int
    endpoint: str | None = None
    request_class: str | None = None
    route: dict[str, Any] | None = None  # why this endpoint, with the numbers the router looked at


class Retried(Event, frozen=True, kw_only=True, tag="retried"):
    endpoint: str
    message: str


class Chunk(Event, frozen=True, kw_only=True, tag="chunk", gc=False):
    """Something token-bearing reached the client. `tokens` is null when the server does not say how many."""

    tokens: int | None


class Ended(Event, frozen=True, kw_only=True, tag="ended"):
    reason: Reason
    output_tokens: int | None
    status: int | None = None
    message: str | None = None


class EndOfRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="end"):
    """Last line of a complete log."""

    t_ns: int
    events: int
    complete: bool = True
    note: str | None = None
