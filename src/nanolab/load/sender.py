"""The open-loop sender: every request leaves at its planned time, whatever happened to the ones before it.

A closed loop would wait for answers and hide exactly the moments when the service is slow. The price of an open loop
is that the sender itself can be late; how late it was is measured, and a run whose sender lagged is not a
measurement of the service (`Lateness.is_within`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nanolab.load.trace import TraceRequest
from nanolab.serving.events import Event, Sent, now_ns
from nanolab.verdicts import EvidenceType

__all__ = ["Emit", "Lateness", "lateness_limit_ms", "lateness_of", "send_open_loop"]

Emit = Callable[[list[Event]], None]
SendOne = Callable[[TraceRequest, int], Awaitable[None]]  # (request, planned time in ns)

LEAD_NS = 20_000_000  # between the decision to start and the first planned arrival


def lateness_limit_ms(evidence: EvidenceType | None) -> float:
    """Half of the mixed trace's 40 ms between arrivals. An engine on CPU shares its cores with the sender, and its
    latencies are seconds: there 100 ms."""
    return 100.0 if evidence is EvidenceType.CPU_ENGINE else 20.0


async def send_open_loop(requests: Sequence[TraceRequest], send_one: SendOne) -> None:
    """Start `send_one` for each request at its planned time; return when all have ended."""
    start = now_ns() + LEAD_NS
    async with asyncio.TaskGroup() as group:
        for request in requests:
            planned = start + int(request.timestamp * 1e6)
            delay = planned - now_ns()
            if delay > 0:
                await asyncio.sleep(delay / 1e9)
            group.create_task(_run(send_one, request, planned))


async def _run(send_one: SendOne, request: TraceRequest, planned: int) -> None:
    await send_one(request, planned)


@dataclass(frozen=True)
class Lateness:
    """How long after its planned time each request was sent. p99 is None under 100 samples: the maximum decides."""

    samples: int
    p50_ms: float
    p99_ms: float | None
    max_ms: float

    def is_within(self, limit_ms: float) -> bool:
        return (self.max_ms if self.p99_ms is None else self.p99_ms) <= limit_ms


def lateness_of(sent: Sequence[Sent]) -> Lateness | None:
    if not sent:
        return None
    late = np.array([(event.t_ns - event.planned_ns) / 1e6 for event in sent])
    p99 = float(np.percentile(late, 99)) if len(late) >= 100 else None
    return Lateness(len(late), float(np.median(late)), p99, float(late.max()))
