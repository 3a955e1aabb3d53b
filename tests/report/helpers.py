"""Event logs written by hand, so that a report's numbers can be stated in advance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nanolab.serving.eventlog import EventLog
from nanolab.serving.events import (
    Admitted,
    Chunk,
    Ended,
    Event,
    Finished,
    Reason,
    RunHeader,
    Sent,
    Step,
    Submitted,
    Token,
)

MS = 1_000_000


def header(**marks: Any) -> RunHeader:
    config = {"mode": "wall", "policy": "prefill_first", "replicas": 1} | marks.pop("config", {})
    defaults: dict[str, Any] = {"run_id": "test", "started_at": "2026-01-01T00:00:00Z", "evidence": "cpu-engine"}
    return RunHeader(**(defaults | marks), config=config)


def stamp(request_id: str | None, at_ms: float, observer: str = "engine", round: int | None = 1) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "worker_id": "w" if observer == "engine" else "http://a",
        "round": round if observer == "engine" else None,
        "step": 1 if observer == "engine" else None,
        "t_ns": int(at_ms * MS),
        "observer": observer,
    }


def engine_life(
    name: str,
    start: float,
    admitted: float,
    tokens: list[float],
    reason: Reason = Reason.LENGTH,
    request_class: str | None = "short",
) -> list[Event]:
    """submitted, admitted, tokens and finished at these milliseconds."""
    end = tokens[-1] if tokens else admitted
    events: list[Event] = [
        Submitted(**stamp(name, start), prompt_tokens=4, max_tokens=len(tokens), request_class=request_class),
        Admitted(**stamp(name, admitted), active=0),
    ]
    events += [Token(**stamp(name, at, round=index), index=index, token=97) for index, at in enumerate(tokens, 1)]
    return [*events, Finished(**stamp(name, end), reason=reason, output_tokens=len(tokens))]


def client_life(
    name: str,
    planned: float,
    sent: float,
    chunks: list[tuple[float, int | None]],
    reason: Reason = Reason.LENGTH,
    request_class: str | None = "short",
    total: int | None = None,
    ended: float | None = None,
) -> list[Event]:
    counted = sum(tokens or 0 for _, tokens in chunks)
    at = ended if ended is not None else chunks[-1][0] if chunks else sent
    events: list[Event] = [
        Sent(
            **stamp(name, sent, "client"),
            planned_ns=int(planned * MS),
            prompt_tokens=4,
            max_tokens=8,
            request_class=request_class,
            endpoint="http://a",
        )
    ]
    events += [Chunk(**stamp(name, time, "client"), tokens=tokens) for time, tokens in chunks]
    end = Ended(**stamp(name, at, "client"), reason=reason, output_tokens=counted if total is None else total)
    return [*events, end]


def step(at: float, duration: float, batch: list[tuple[str, int, int, int]], phase: str = "decode") -> Step:
    return Step(
        **stamp(None, at),
        phase=phase,
        started_ns=int((at - duration) * MS),
        batch=[(*row, [0]) for row in batch],
        waiting=0,
        running=len(batch),
        free_blocks=10 - len(batch),
    )


def write(path: Path, events: list[Event], complete: bool = True, **marks: Any) -> Path:
    log = EventLog(path, header(**marks))
    log.write(sorted(events, key=lambda event: event.t_ns))
    log.close(complete=complete, note=None if complete else "stopped")
    return path
