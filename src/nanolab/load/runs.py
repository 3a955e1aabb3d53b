"""One load run from options to a finished log: in process (wall or round) or over HTTP."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from nanolab.errors import LabError
from nanolab.evidence import check_writable
from nanolab.load.inprocess import InProcessClient, RoundInjector, run_rounds
from nanolab.load.remote import RemoteClient, Replica, connect
from nanolab.load.router import Router
from nanolab.load.sender import Lateness, lateness_limit_ms, lateness_of
from nanolab.load.trace import Trace, TraceRequest, read_trace
from nanolab.load.warmup import warmup_requests
from nanolab.serving.engine import EngineFacts
from nanolab.serving.eventlog import EventLog
from nanolab.serving.events import Ended, Event, Finished, Reason, RunHeader, Sent
from nanolab.serving.launch import EngineOptions, Launch, prepare, run_header
from nanolab.serving.lifecycle import WorkerLimits, settled_interpreter
from nanolab.serving.profiler import PROFILED_STEPS, StepProfiler
from nanolab.serving.worker import Worker
from nanolab.verdicts import EvidenceType

__all__ = ["LoadOptions", "LoadSummary", "RemoteOptions", "load_remote", "run_in_process", "run_remote"]

DRAIN_S = 600.0  # an in-process run ends when its requests do; this only bounds one that hangs


@dataclass(frozen=True)
class LoadOptions:
    trace: Path
    out: Path
    engine: EngineOptions
    mode: str = "wall"
    warmup: int = 2
    max_active: int = 8
    max_queued: int = 256
    round_ms: float = 20.0
    profile_dir: Path | None = None
    profile_steps: int = PROFILED_STEPS


@dataclass(frozen=True)
class RemoteOptions:
    trace: Path
    out: Path
    endpoints: tuple[str, ...]
    api: str = "native"
    router: str = "round_robin"
    warmup: int = 2


@dataclass
class LoadSummary:
    """What is printed when the run is over; the report computes everything else from the log."""

    out: Path
    requests: int
    ends: Counter[str]
    lateness: Lateness | None
    notes: list[str] = field(default_factory=list)
    announced: dict[str, Any] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not self.notes


@dataclass
class Tally:
    """A listener that keeps what the summary needs."""

    observer: str
    warmup: frozenset[str]
    sent: list[Sent] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    first_error: str | None = None

    def __call__(self, events: list[Event]) -> None:
        for event in events:
            if event.request_id in self.warmup or event.observer != self.observer:
                continue
            if isinstance(event, Sent):
                self.sent.append(event)
            elif isinstance(event, Ended | Finished):
                self.ends[event.reason.value] += 1
                if event.reason is Reason.ERROR and self.first_error is None:
                    self.first_error = event.message or "no message"

    def errors(self) -> list[str]:
        """One line when requests ended as errors: what is left is part of a run."""
        count = self.ends[Reason.ERROR.value]
        return [f"{count} requests ended in an error, the first: {self.first_error}"] if count else []


# ---- in process ------------------------------------------------------------------------------------------


def run_in_process(options: LoadOptions, announce: Callable[..., None]) -> LoadSummary:
    if options.mode not in ("wall", "round"):
        raise LabError(f"--mode is {options.mode!r}; choose wall or round")
    if options.mode == "round" and options.profile_dir is not None:
        raise LabError("--profile-dir needs --mode wall: a profile measures time, a round run does not")
    if options.round_ms <= 0:
        raise LabError(f"--round-ms is {options.round_ms:g}; it must be more than 0")
    WorkerLimits(options.max_active, options.max_queued)
    check_writable(options.out)
    launch = prepare(options.engine)
    trace = read_trace(options.trace, max_model_len=options.engine.max_model_len)
    run = InProcessRun(options, launch, trace, announce)
    return run.by_round() if options.mode == "round" else asyncio.run(run.by_time())


@dataclass
class InProcessRun:
    options: LoadOptions
    launch: Launch
    trace: Trace
    announce: Callable[..., None]

    def header(self, facts: EngineFacts, warmup: Sequence[TraceRequest]) -> RunHeader:
        options, evidence = self.options, self.launch.evidence(facts)
        config = self.launch.revealed(facts) | {
            "mode": options.mode,
            "max_active": options.max_active,
            "max_model_len": facts.max_model_len,
            "batch_tokens": options.engine.batch_tokens,
            "batch_seqs": options.engine.batch_seqs,
            "block_size": facts.block_size,
            "num_blocks": facts.num_blocks,
            "attention_backend": facts.attention_backend,
            "replicas": 1,
            "endpoints": None,
        }
        if options.mode == "round":
            config["round_ms"] = options.round_ms
        return run_header(
            evidence=evidence,
            launch=self.launch,
            device=facts.device,
            config=config,
            trace_sha256=self.trace.sha256,
            simulated=self.launch.options.simulated,
            profile=options.profile_dir is not None,
            round_injected=options.mode == "round",
            warmup=[request.request_id for request in warmup],
            lateness_limit_ms=lateness_limit_ms(evidence),
        )

    def limits(self, stream_capacity: int = 4096) -> WorkerLimits:
        return WorkerLimits(self.options.max_active, self.options.max_queued, stream_capacity)

    def check(self, facts: EngineFacts) -> tuple[list[TraceRequest], Tally]:
        """The trace against the live engine's limits, and the warm-up requests."""
        read_trace(self.trace.path, facts.vocab_size, facts.max_model_len)
        warmup = warmup_requests(self.options.warmup, facts.vocab_size)
        ids = frozenset(request.request_id for request in warmup)
        if clash := ids.intersection(request.request_id for request in self.trace.requests):
            raise LabError(f"{self.trace.path} uses the warm-up's request ids {sorted(clash)}; rename them")
        observer = "engine" if self.options.mode == "round" else "client"
        self.announce(engine=self.launch.engine["kind"], device=facts.device, attention=facts.attention_backend)
        return warmup, Tally(observer, ids)

    async def by_time(self) -> LoadSummary:
        """Open loop: warm up, start the profiler if there is one, then send every request at its time."""
        options = self.options
        profiler = StepProfiler(options.profile_dir, options.profile_steps) if options.profile_dir else None
        worker = Worker(self.launch.create, self.limits(), loop=asyncio.get_running_loop())
        facts = await asyncio.to_thread(worker.start)
        try:
            warmup, tally = self.check(facts)
            with settled_interpreter(), EventLog(self.options.out, self.header(facts, warmup)) as log:
                worker.add_listener(log.write)
                client = InProcessClient(worker, _both(log.write, tally))
                await client.run(warmup)
                if profiler is not None:
                    await asyncio.wrap_future(worker.call(profiler.start))
                await client.run(self.trace.requests)
                if profiler is not None:
                    await asyncio.wrap_future(worker.call(profiler.stop))
                await asyncio.to_thread(worker.close, DRAIN_S)
        finally:
            await asyncio.to_thread(worker.close, 0.0)
        return self._summary(worker, tally)

    def by_round(self) -> LoadSummary:
        """Everything on the owner thread, at exact rounds."""
        injector = RoundInjector(self.trace.requests, round_ms=self.options.round_ms)
        # Nobody reads the streams of a round run, so no reader can be slow.
        worker = Worker(self.launch.create, self.limits(stream_capacity=10**9), before_round=injector)
        log: EventLog | None = None
        tally = Tally("engine", frozenset())

        def on_started(facts: EngineFacts) -> None:
            nonlocal log, tally
            injector.warmup, tally = self.check(facts)
            log = EventLog(self.options.out, self.header(facts, injector.warmup))
            worker.add_listener(log.write)
            worker.add_listener(tally)

        try:
            run_rounds(worker, injector, on_started, DRAIN_S)
        finally:
            worker.close(0.0)
            if log is not None:
                log.close(complete=worker.failure is None, note=worker.failure)
        summary = self._summary(worker, tally)
        summary.notes += injector.refusals
        return summary

    def _summary(self, worker: Worker, tally: Tally) -> LoadSummary:
        notes = [f"the engine failed: {worker.failure}"] if worker.failure else []
        is_measurement = not self.launch.options.simulated and self.options.profile_dir is None
        limit = lateness_limit_ms(self.launch.evidence(worker.facts)) if is_measurement else None
        return _summarize(self.options.out, len(self.trace.requests), tally, notes, limit)


# ---- over HTTP -------------------------------------------------------------------------------------------


def run_remote(options: RemoteOptions, announce: Callable[..., None]) -> LoadSummary:
    check_writable(options.out)
    if not options.endpoints:
        raise LabError("--endpoints is empty; give one or more URLs, separated by commas")
    urls = [url.rstrip("/") for url in options.endpoints]
    if twice := sorted({url for url in urls if urls.count(url) > 1}):
        raise LabError(f"--endpoints names {twice[0]} twice; name each replica once, or one would be counted as two")
    trace = read_trace(options.trace)
    return asyncio.run(load_remote(options, trace, announce))


async def load_remote(options: RemoteOptions, trace: Trace, announce: Callable[..., None]) -> LoadSummary:
    async with connect(options.endpoints, options.api) as (http, replicas):
        _check_remote_limits(trace, replicas)
        warmup = [[*warmup_requests(options.warmup, 256, prefix=f"warmup-{index}")] for index in range(len(replicas))]
        header = _remote_header(options, trace, replicas, [r.request_id for group in warmup for r in group])
        tally = Tally("client", frozenset(header.warmup))
        for replica in replicas:
            announce(endpoint=replica.url, **{name: replica.revealed.get(name) for name in ("worker_id", "policy")})
        with EventLog(options.out, header) as log:
            emit = _both(log.write, tally)
            for replica, group in zip(replicas, warmup, strict=True):
                await RemoteClient(http, [replica], Router("round_robin", 1), options.api, emit).run(group)
            client = RemoteClient(http, replicas, Router(options.router, len(replicas)), options.api, emit)
            await client.run(trace.requests)
            notes = [f"replica {death}" for death in client.deaths] + tally.errors()
            if notes:
                log.close(complete=False, note="; ".join(notes))
        limit = None if header.simulated else header.lateness_limit_ms
        return _summarize(options.out, len(trace.requests), tally, notes, limit)


def _check_remote_limits(trace: Trace, replicas: Sequence[Replica]) -> None:
    """Where a replica says what its engine takes, a trace that does not fit is refused before it is sent."""
    for replica in replicas:
        engine = replica.revealed.get("engine") or {}
        read_trace(trace.path, engine.get("vocab_size"), engine.get("max_model_len"))


def _remote_header(options: RemoteOptions, trace: Trace, replicas: Sequence[Replica], warmup: list[str]) -> RunHeader:
    """What the endpoints reveal about themselves; null where they do not, a list where they differ."""
    revealed, runs_on = _agreed(replicas, "evidence"), _agreed(replicas, "runs_on")
    evidence = EvidenceType(revealed) if isinstance(revealed, str) else None
    config = {name: _agreed(replicas, name) for name in ("policy", "tensor_parallel_size", "execution")}
    config |= {
        "mode": "wall",
        "api": options.api,
        "router": options.router if len(replicas) > 1 else None,
        "replicas": len(replicas),
        "endpoints": [replica.url for replica in replicas],
        "served_model": replicas[0].model,
        "max_model_len": _agreed_limit(replicas),
    }
    header = run_header(
        evidence=evidence,
        config=config,
        trace_sha256=trace.sha256,
        simulated=any(replica.revealed.get("simulated") for replica in replicas),
        profile=False,
        round_injected=False,
        warmup=warmup,
        lateness_limit_ms=lateness_limit_ms(evidence),
    )
    return msgspec.structs.replace(header, **runs_on) if isinstance(runs_on, dict) else header


def _agreed_limit(replicas: Sequence[Replica]) -> Any:
    limits = [(replica.revealed.get("engine") or {}).get("max_model_len") for replica in replicas]
    return limits[0] if len(set(limits)) == 1 else limits


def _agreed(replicas: Sequence[Replica], name: str) -> Any:
    values = [replica.revealed.get(name) for replica in replicas]
    return values[0] if all(value == values[0] for value in values) else values


# ---- shared ----------------------------------------------------------------------------------------------


def _both(first: Callable[[list[Event]], None], second: Callable[[list[Event]], None]) -> Callable[[list[Event]], None]:
    def emit(events: list[Event]) -> None:
        first(events)
        second(events)

    return emit


def _summarize(out: Path, planned: int, tally: Tally, notes: list[str], limit: float | None) -> LoadSummary:
    """A late sender spoils a measurement; a simulated or profiled run is none (`limit` None)."""
    lateness = lateness_of(tally.sent)
    if limit is not None and lateness is not None and not lateness.is_within(limit):
        late = lateness.max_ms if lateness.p99_ms is None or math.isnan(lateness.p99_ms) else lateness.p99_ms
        notes = [*notes, f"the sender lagged ({late:.1f} ms): the run is invalid as a measurement"]
    ended = sum(tally.ends.values())
    if ended != planned:
        notes = [*notes, f"{ended} of {planned} requests have an end"]
    return LoadSummary(out, planned, tally.ends, lateness, notes)
