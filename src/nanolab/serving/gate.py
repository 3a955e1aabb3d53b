"""Holding an engine's owner thread at a named point, so that a race can be forced instead of hoped for."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["WAIT_S", "Gate"]

WAIT_S = 20.0  # how long any single wait may take before it counts as a failure


class Gate:
    """Goes into `SimulatedHooks`: the owner stops in `hook` until it is let go.

    `arrived()` returns when the owner stands at the gate; `release()` lets it pass once, `open()` for good.
    """

    def __init__(self) -> None:
        self._arrivals = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)
        self._open = False

    def hook(self, engine: Any) -> None:
        if self._open:
            return
        self._arrivals.release()
        if not self._permits.acquire(timeout=WAIT_S):
            raise TimeoutError(f"the gate was not released within {WAIT_S:g} s")

    def arrived(self) -> None:
        if not self._arrivals.acquire(timeout=WAIT_S):
            raise TimeoutError(f"the owner thread did not come to the gate within {WAIT_S:g} s")

    def release(self) -> None:
        self._permits.release()

    def open(self) -> None:
        self._open = True
        self._permits.release(1000)
