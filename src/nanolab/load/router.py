"""Choosing a replica for each request, explainably: the decision comes with the numbers it was made from.

A router knows what it assigned, not what a replica is doing. `expected_work` counts prompt and output tokens of
requests it assigned and that have not ended; `plan` replays the decisions offline, without any server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nanolab.load.trace import TraceRequest

__all__ = ["ROUTERS", "Router", "expected_work", "plan"]

ROUTERS = ("round_robin", "expected_work")


def expected_work(request: TraceRequest) -> int:
    """Tokens to compute: every prompt position once and every output token once."""
    return request.input_length + request.output_length


@dataclass
class Router:
    """Pick with `choose`, give the work back with `ended`. `policy` is one of ROUTERS."""

    policy: str
    replicas: int
    outstanding: list[int] = field(default_factory=list)
    assigned: list[int] = field(default_factory=list)
    _turn: int = 0

    def __post_init__(self) -> None:
        if self.policy not in ROUTERS:
            raise ValueError(f"router {self.policy!r}; choose one of {', '.join(ROUTERS)}")
        self.outstanding = [0] * self.replicas
        self.assigned = [0] * self.replicas

    def choose(self, request: TraceRequest, usable: Sequence[int]) -> tuple[int, dict[str, Any]]:
        """(replica, why) among the usable replicas, of which there must be one."""
        if self.policy == "round_robin":
            chosen = min(usable, key=lambda index: (index - self._turn) % self.replicas)
            self._turn = (chosen + 1) % self.replicas
        else:
            chosen = min(usable, key=lambda index: (self.outstanding[index], index))
        why = {
            "policy": self.policy,
            "replica": chosen,
            "usable": list(usable),
            "outstanding_tokens": list(self.outstanding),
        }
        self.outstanding[chosen] += expected_work(request)
        self.assigned[chosen] += 1
        return chosen, why

    def ended(self, request: TraceRequest, replica: int) -> None:
        self.outstanding[replica] -= expected_work(request)


def plan(requests: Sequence[TraceRequest], policy: str, replicas: int) -> list[int]:
    """The replica of each request if none ended before the last was assigned: the same on every run."""
    router = Router(policy, replicas)
    everyone = range(replicas)
    return [router.choose(request, everyone)[0] for request in requests]
