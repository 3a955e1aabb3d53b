"""The small types around a Worker: its states, its limits, and the answers it owes to cancels and calls."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from nanolab.errors import LabError
from nanolab.serving.engine import Engine
from nanolab.serving.requests import NotServing

__all__ = [
    "CancelAnswer",
    "ClosedEngine",
    "RecentIds",
    "State",
    "WorkerLimits",
    "answered",
    "promise",
    "require_positive",
    "settled_interpreter",
]

T = TypeVar("T")

# The owner thread and the event loop share one interpreter. Python's default turn of 5 ms would make every
# handover, and every planned arrival, late by that much while the engine computes in Python.
SWITCH_INTERVAL_S = 0.0005


@contextlib.contextmanager
def settled_interpreter() -> Iterator[None]:
    """While requests are served: short turns, and no garbage collection of what was loaded before."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval)


class State(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    DEAD = "dead"  # the engine failed, or could not be created
    CLOSED = "closed"


class CancelAnswer(StrEnum):
    CANCELLED = "cancelled"
    ALREADY_FINISHED = "already_finished"
    UNKNOWN = "unknown"


def require_positive(options: object, *names: str) -> None:
    """A limit of 0 would not refuse anything: the run would wait for ever."""
    for name in names:
        if getattr(options, name) < 1:
            raise LabError(f"{name} is {getattr(options, name)}; it must be at least 1")


@dataclass(frozen=True)
class WorkerLimits:
    max_active: int = 8  # admitted requests, waiting or running in the engine
    max_queued: int = 256  # accepted requests that wait for admission
    stream_capacity: int = 1024  # unread tokens a stream holds before its reader counts as stalled

    def __post_init__(self) -> None:
        require_positive(self, *self.__dataclass_fields__)


def promise() -> Future[Any]:
    """A future that whoever waits for it cannot cancel, so that the owner thread can always answer."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def answered(function: Callable[[Engine], T]) -> tuple[Callable[[Engine], None], Future[T]]:
    """`function` as the owner thread runs it, and the future that gets its result or its exception."""
    answer: Future[T] = promise()

    def run(engine: Engine) -> None:
        try:
            answer.set_result(function(engine))
        except Exception as error:
            answer.set_exception(error)

    return run, answer


class RecentIds:
    """The ids that finished last, so that a cancel can tell `already_finished` from `unknown`; the oldest go first."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids

    def add(self, request_id: str) -> None:
        self._ids[request_id] = None
        self._ids.move_to_end(request_id)
        while len(self._ids) > self._capacity:
            self._ids.popitem(last=False)


class ClosedEngine:
    """What a call gets that arrived after the last safe boundary: an error that says so."""

    def __getattr__(self, name: str) -> Any:
        raise NotServing(f"the worker was closed before `{name}` could be read")
