"""The service's whole path on CPU with a simulated engine: eight scenarios, each stating what it checks.

A scenario says what may happen (and is not fixed) and what must be recovered (and is checked). The engine is held at
a gate where a race has to be forced, so every run takes the same way. All events go into one log, marked simulated;
the worker_id of an event is its scenario's name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from nanolab.serving.delivery import Listener
from nanolab.serving.engine import SamplingSpec
from nanolab.serving.events import Admitted, Event, Finished, Reason, Step, Token
from nanolab.serving.gate import WAIT_S, Gate
from nanolab.serving.lifecycle import CancelAnswer, State, WorkerLimits
from nanolab.serving.requests import GenerationRequest, NotServing, QueueFull
from nanolab.serving.simulated import SimulatedConfig, SimulatedEngine, SimulatedHooks, simulated_tokens
from nanolab.serving.stream import Stream
from nanolab.serving.worker import Worker

__all__ = ["SCENARIOS", "Outcome", "Scenario", "run_scenario"]


@dataclass
class Stage:
    """One worker around a simulated engine, its events, and the checks made so far."""

    name: str
    listener: Listener
    events: list[Event] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    engines: list[SimulatedEngine] = field(default_factory=list)

    def start(
        self,
        limits: WorkerLimits | None = None,
        config: SimulatedConfig | None = None,
        hooks: SimulatedHooks | None = None,
    ) -> Worker:
        def create() -> SimulatedEngine:
            self.engines.append(SimulatedEngine(config, hooks))
            return self.engines[-1]

        worker = Worker(create, limits, worker_id=self.name, listeners=(self.events.extend, self.listener))
        worker.start()
        return worker

    def request(self, name: str, prompt_tokens: int = 8, max_tokens: int = 6) -> GenerationRequest:
        prompt = [(len(name) * 31 + index) % 256 for index in range(prompt_tokens)]
        return GenerationRequest(f"{self.name}/{name}", prompt, SamplingSpec(max_tokens=max_tokens))

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.problems.append(what)

    def check_end(self, request: GenerationRequest, reason: Reason) -> None:
        ends = [e.reason for e in self.events if isinstance(e, Finished) and e.request_id == request.request_id]
        self.check(ends == [reason], f"{request.request_id} ends exactly once as {reason}, got {ends}")

    def check_tokens(self, request: GenerationRequest) -> None:
        """The request received exactly what it would have received alone."""
        got = [e.token for e in self.events if isinstance(e, Token) and e.request_id == request.request_id]
        wanted = simulated_tokens(request.prompt_token_ids, request.sampling.max_tokens)
        self.check(got == wanted, f"{request.request_id} receives its {len(wanted)} tokens, got {len(got)}")

    def check_freed(self) -> None:
        engine = self.engines[-1]
        self.check(engine.free_blocks == engine.num_blocks, f"all {engine.num_blocks} blocks are free again")
        self.check(engine.closed, "the engine is closed")


@dataclass(frozen=True)
class Scenario:
    name: str
    may: str  # what may happen and is not fixed
    must: str  # what must hold afterwards, and is checked
    run: Callable[[Stage], None]


@dataclass(frozen=True)
class Outcome:
    scenario: Scenario
    problems: list[str]
    requests: int


def run_scenario(scenario: Scenario, listener: Listener) -> Outcome:
    stage = Stage(scenario.name, listener)
    scenario.run(stage)
    _check_lives(stage)
    names = {event.request_id for event in stage.events if event.request_id is not None}
    return Outcome(scenario, stage.problems, len(names))


def _check_lives(stage: Stage) -> None:
    """Whatever the scenario did: every request that was submitted has exactly one end, and nothing after it."""
    by_request: dict[str, list[Event]] = {}
    for event in stage.events:
        if event.request_id is not None:
            by_request.setdefault(event.request_id, []).append(event)
    for request_id, life in by_request.items():
        ends = [index for index, event in enumerate(life) if isinstance(event, Finished)]
        stage.check(ends == [len(life) - 1], f"{request_id} has one terminal event, and it is the last")


def _wait(answer: Future[str]) -> str:
    return answer.result(WAIT_S)


def dynamic_join(stage: Stage) -> None:
    gate = Gate()
    worker = stage.start(hooks=SimulatedHooks(in_step=gate.hook))
    early, late = stage.request("early", max_tokens=8), stage.request("late", max_tokens=3)
    worker.submit(early)
    gate.arrived()  # `early` is being prefilled
    worker.submit(late)
    gate.open()
    worker.close(WAIT_S)
    stage.check_tokens(early)
    stage.check_tokens(late)
    active = {e.request_id: e.active for e in stage.events if isinstance(e, Admitted)}
    stage.check(active == {early.request_id: 0, late.request_id: 1}, f"late joins while early is active, got {active}")
    shared = [e for e in stage.events if isinstance(e, Step) and len(e.batch) == 2 and e.phase == "decode"]
    stage.check(bool(shared), "both are decoded in one step")
    stage.check_freed()


def token_streaming(stage: Stage) -> None:
    gate = Gate()
    config = SimulatedConfig(max_num_batched_tokens=16)
    worker = stage.start(config=config, hooks=SimulatedHooks(before_step=gate.hook))
    chunked = stage.request("chunked", prompt_tokens=40, max_tokens=3)
    stream = worker.submit(chunked)
    seen: list[int] = []
    for _ in range(5):  # three prefill chunks, then two decodes
        gate.arrived()
        seen.append(sum(isinstance(event, Token) for event in stream.take_nowait()))
        gate.release()
    gate.open()
    worker.close(WAIT_S)
    stage.check(seen == [0, 0, 0, 1, 1], f"nothing before the last chunk, then one token a step; got {seen}")
    stage.check_tokens(chunked)
    stage.check_freed()


def cancel_waiting(stage: Stage) -> None:
    gate = Gate()
    worker = stage.start(WorkerLimits(max_active=1), hooks=SimulatedHooks(in_step=gate.hook))
    running, waiting = stage.request("running"), stage.request("waiting")
    worker.submit(running)
    gate.arrived()
    worker.submit(waiting)
    answer = worker.cancel(waiting.request_id)
    gate.open()
    stage.check(_wait(answer) == CancelAnswer.CANCELLED, "the cancel is answered `cancelled`")
    worker.close(WAIT_S)
    stage.check_end(waiting, Reason.CANCELLED)
    admitted = [e for e in stage.events if isinstance(e, Admitted) and e.request_id == waiting.request_id]
    stage.check(not admitted, "a request cancelled while it waits is never admitted")
    stage.check_tokens(running)
    stage.check_freed()


def cancel_generating(stage: Stage) -> None:
    gate = Gate()
    worker = stage.start(hooks=SimulatedHooks(after_step=gate.hook))
    cancelled, other = stage.request("cancelled", max_tokens=500), stage.request("other", max_tokens=12)
    worker.submit(cancelled)
    worker.submit(other)
    for _ in range(4):
        gate.arrived()
        gate.release()
    gate.arrived()
    answer = worker.cancel(cancelled.request_id)
    gate.open()
    stage.check(_wait(answer) == CancelAnswer.CANCELLED, "the cancel is answered `cancelled`")
    again = worker.cancel(cancelled.request_id)
    stage.check(_wait(again) == CancelAnswer.ALREADY_FINISHED, "a second cancel is answered `already_finished`")
    reused = worker.submit(GenerationRequest(cancelled.request_id + "/again", [1], SamplingSpec(max_tokens=1)))
    worker.close(WAIT_S)
    stage.check(reused.finished is not None, "the worker goes on serving")
    stage.check_end(cancelled, Reason.CANCELLED)
    stage.check_tokens(other)
    stage.check_freed()


def queue_full(stage: Stage) -> None:
    gate = Gate()
    worker = stage.start(WorkerLimits(max_active=1, max_queued=2), hooks=SimulatedHooks(in_step=gate.hook))
    accepted = [stage.request(f"accepted-{index}") for index in range(3)]
    worker.submit(accepted[0])
    gate.arrived()
    for request in accepted[1:]:
        worker.submit(request)
    over = stage.request("over")
    try:
        worker.submit(over)
        stage.check(False, "the request over the limit is refused")
    except QueueFull:
        pass
    gate.open()
    worker.close(WAIT_S)
    stage.check_end(over, Reason.REJECTED)
    for request in accepted:
        stage.check_tokens(request)
    stage.check_freed()


def slow_consumer(stage: Stage) -> None:
    worker = stage.start(WorkerLimits(stream_capacity=16))
    stalled, other = stage.request("stalled", max_tokens=900), stage.request("other", max_tokens=10)
    unread: Stream = worker.submit(stalled)  # nobody ever reads it
    worker.submit(other)
    worker.close(WAIT_S)
    stage.check_end(stalled, Reason.SLOW_CONSUMER)
    kept = unread.take_nowait()
    stage.check(len(kept) <= 17, f"its stream holds at most 16 events and the end, got {len(kept)}")
    stage.check_tokens(other)
    stage.check_freed()


def engine_exception(stage: Stage) -> None:
    gate = Gate()

    def fault(engine: SimulatedEngine) -> None:
        gate.hook(engine)
        raise RuntimeError("injected fault")

    worker = stage.start(WorkerLimits(max_active=2), hooks=SimulatedHooks(in_step=fault))
    requests = [stage.request(f"open-{index}") for index in range(4)]
    for request in requests:
        worker.submit(request)
    gate.arrived()
    gate.open()
    worker.close(WAIT_S)
    for request in requests:
        stage.check_end(request, Reason.ERROR)
    stage.check(worker.state is State.DEAD, f"the worker reports itself dead, not {worker.state}")
    stage.check(stage.engines[-1].closed, "the failed engine is closed")
    fresh, after = stage.start(), stage.request("after")
    fresh.submit(after)
    fresh.close(WAIT_S)
    stage.check_tokens(after)
    stage.check_freed()


def close(stage: Stage) -> None:
    gate = Gate()
    worker = stage.start(WorkerLimits(max_active=1), hooks=SimulatedHooks(in_step=gate.hook))
    active, queued = stage.request("active", max_tokens=900), stage.request("queued")
    worker.submit(active)
    worker.submit(queued)
    gate.arrived()
    closing = threading.Thread(target=worker.close, args=(0.0,))
    closing.start()
    deadline = time.monotonic() + WAIT_S
    while worker.state is State.SERVING and time.monotonic() < deadline:
        time.sleep(0.001)
    late = stage.request("late")
    try:
        worker.submit(late)
        stage.check(False, "a closing worker refuses new requests")
    except NotServing:
        pass
    gate.open()
    closing.join(WAIT_S)
    stage.check(not closing.is_alive(), "close returns")
    stage.check_end(active, Reason.SHUTDOWN)
    stage.check_end(queued, Reason.SHUTDOWN)
    stage.check_end(late, Reason.REJECTED)
    left = [thread.name for thread in threading.enumerate() if thread.name == f"{stage.name}-owner"]
    stage.check(not left, f"no thread survives, found {left}")
    stage.check_freed()


SCENARIOS = (
    Scenario(
        "dynamic-join",
        "the step in which the second request joins",
        "it joins without waiting for the first to end; both get their own tokens",
        dynamic_join,
    ),
    Scenario(
        "token-streaming",
        "how long a step takes",
        "no token before the last prefill chunk, then one a step",
        token_streaming,
    ),
    Scenario(
        "cancel-waiting",
        "how long the request has waited",
        "it ends as cancelled without having been admitted; the running one is untouched",
        cancel_waiting,
    ),
    Scenario(
        "cancel-generating",
        "how many tokens came before the cancel",
        "it ends once as cancelled, nothing comes afterwards, others and blocks are intact",
        cancel_generating,
    ),
    Scenario(
        "queue-full",
        "which request finds the queue full",
        "it is refused at once; nothing accepted earlier is lost",
        queue_full,
    ),
    Scenario(
        "slow-consumer",
        "how many tokens the engine computed before it was told",
        "the stalled request ends as slow_consumer, memory stays bounded, others are untouched",
        slow_consumer,
    ),
    Scenario(
        "engine-exception",
        "in which step the engine fails",
        "every open request ends as error, the worker says it is dead, a new one starts",
        engine_exception,
    ),
    Scenario(
        "close",
        "how far the requests have come",
        "new ones are refused, open ones end as shutdown, no thread and no block is left",
        close,
    ),
)
