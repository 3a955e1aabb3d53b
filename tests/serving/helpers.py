"""Pieces the service's tests share: requests, gates inside the simulated engine, checks of a request's life."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from nanolab.serving import GenerationRequest, SamplingSpec, Worker, WorkerLimits
from nanolab.serving.events import Admitted, Event, Finished, Submitted, Token
from nanolab.serving.gate import WAIT_S, Gate
from nanolab.serving.simulated import SimulatedConfig, SimulatedEngine, SimulatedHooks, simulated_tokens


def request(
    request_id: str, prompt: list[int] | None = None, max_tokens: int = 4, **sampling: object
) -> GenerationRequest:
    ids = prompt or [ord(character) % 256 for character in request_id]
    return GenerationRequest(request_id, ids, SamplingSpec(max_tokens=max_tokens, **sampling))  # type: ignore[arg-type]


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread to get there; the condition must be one that cannot become false again."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.001)


class Rig:
    """A worker around a simulated engine, every event recorded, closed at the end of the `with`."""

    def __init__(
        self,
        limits: WorkerLimits | None = None,
        config: SimulatedConfig | None = None,
        hooks: SimulatedHooks | None = None,
        before_round: Callable[[int], bool] | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.engines: list[SimulatedEngine] = []
        self._gate = gate

        def create() -> SimulatedEngine:
            self.engines.append(SimulatedEngine(config, hooks))
            return self.engines[-1]

        self.worker = Worker(create, limits, listeners=(self.events.extend,), before_round=before_round)

    @property
    def engine(self) -> SimulatedEngine:
        return self.engines[-1]

    def __enter__(self) -> Rig:
        self.worker.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._gate:
            self._gate.open()
        self.worker.close(drain_s=WAIT_S)

    def sync(self) -> None:
        """Return when the owner has passed a safe boundary after everything asked so far."""
        self.worker.call(lambda engine: None).result(WAIT_S)

    def life(self, request_id: str) -> list[Event]:
        return [event for event in self.events if event.request_id == request_id]

    def end(self, request_id: str) -> Finished:
        ends = [event for event in self.life(request_id) if isinstance(event, Finished)]
        assert len(ends) == 1, f"{request_id} has {len(ends)} terminal events"
        return ends[0]


def check_lives(events: Iterable[Event]) -> None:
    """Order per request: submitted, admitted, token 1..N, exactly one finished, and nothing after it."""
    lives: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.request_id is not None:
            lives[event.request_id].append(event)
    for request_id, life in lives.items():
        for one in split_reused(life):
            _check_one(request_id, one)


def split_reused(life: list[Event]) -> list[list[Event]]:
    """An id may be used again: one list for each `submitted`."""
    starts = [index for index, event in enumerate(life) if isinstance(event, Submitted)]
    assert starts and starts[0] == 0, "a life must begin with `submitted`"
    return [life[start:stop] for start, stop in zip(starts, [*starts[1:], len(life)], strict=True)]


def _check_one(request_id: str, life: list[Event]) -> None:
    kinds = [type(event).__name__ for event in life]
    tokens = [event for event in life if isinstance(event, Token)]
    admitted = [event for event in life if isinstance(event, Admitted)]
    expected = ["Submitted"] + ["Admitted"] * len(admitted) + ["Token"] * len(tokens) + ["Finished"]
    assert kinds == expected, f"{request_id}: {kinds}"
    assert len(admitted) <= 1, f"{request_id} was admitted {len(admitted)} times"
    assert [token.index for token in tokens] == list(range(1, len(tokens) + 1)), request_id
    end = life[-1]
    assert isinstance(end, Finished)
    assert end.output_tokens == len(tokens), f"{request_id}: {end.output_tokens} counted, {len(tokens)} sent"
    times = [event.t_ns for event in life]
    assert times == sorted(times), f"{request_id}: times go backwards"


def tokens_of(events: Iterable[Event]) -> list[int]:
    return [event.token for event in events if isinstance(event, Token)]


def expected_tokens(wanted: GenerationRequest) -> list[int]:
    return simulated_tokens(wanted.prompt_token_ids, wanted.sampling.max_tokens)
