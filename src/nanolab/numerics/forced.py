"""Teacher forcing on a live engine: its scheduler, block manager, runner and paged cache, but not its sampler.

Each step is driven by hand, as `step()` does it: schedule, prepare, run the model, postprocess. What the sampler
would choose is ignored; postprocess receives the preset next id, so that two collections follow one trajectory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nanolab.observe import KVProbe, RouteProbe, captured_graphs, step_inputs
from nanolab.sources import EngineDriver, SamplingSpec

from .suites import Group, Suite, identity

Float32 = npt.NDArray[np.float32]


@dataclass
class GroupFacts:
    """What was seen in one group besides logits; one entry of `steps` per step."""

    name: str
    requests: int
    steps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def decode_route(self) -> str | None:
        routes = [step["route"] for step in self.steps if step["phase"] == "decode"]
        return routes[0] if routes else None

    def all(self, check: str) -> bool:
        return all(step[check] for step in self.steps)


@dataclass
class FaultSeen:
    """An exception raised by the engine while a step ran."""

    type: str
    message: str
    group: str
    phase: str
    batch: int


@dataclass
class ForcedRun:
    rows: list[dict[str, Any]] = field(default_factory=list)
    logits: list[Float32] = field(default_factory=list)  # [vocab] each, beside `rows`
    kv: list[Float32] = field(default_factory=list)  # [layers, 2, kv_heads, head_dim] written at the row's position
    groups: list[GroupFacts] = field(default_factory=list)
    buckets: list[int] = field(default_factory=list)  # batch sizes that the engine captured graphs for
    fault: FaultSeen | None = None

    def facts(self) -> dict[str, Any]:
        """The part of a result block that says what ran and what was checked."""
        return {
            "buckets": self.buckets,
            "routes": {group.name: group.decode_route for group in self.groups},
            "history_unchanged": all(group.all("history_unchanged") for group in self.groups),
            "others_unchanged": all(group.all("others_unchanged") for group in self.groups),
            "padding_safe": all(group.all("padding_safe") for group in self.groups),
            "groups": [asdict(group) for group in self.groups],
        }


def collect_engine(
    driver: EngineDriver, suite: Suite, *, keep_kv: bool = False, stop_at_fault: bool = False,
    on_group: Callable[[str], None] = lambda _: None,
) -> ForcedRun:  # fmt: skip
    """Play every group of the suite; with `stop_at_fault` an engine's exception ends the run and is recorded."""
    run, routes, kv = ForcedRun(), RouteProbe(driver), KVProbe(driver)
    run.buckets = sorted(captured_graphs(driver.engine.model_runner))
    try:
        for group in suite.groups:
            on_group(group.name)
            playing = _Group(driver, group, run, routes, kv, keep_kv)
            try:
                playing.play()
            except Exception as error:
                if not stop_at_fault:
                    raise
                run.fault = FaultSeen(type(error).__name__, str(error), group.name, *playing.running)
                break
    finally:
        routes.detach()
    _sort(run)
    return run


def _sort(run: ForcedRun) -> None:
    """Rows in the order of the suite: groups as played, then requests, then rounds."""
    groups = [group.name for group in run.groups]
    keys = [(groups.index(row["group"]), int(row["request"][1:]), row["round"]) for row in run.rows]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    run.rows, run.logits = [run.rows[i] for i in order], [run.logits[i] for i in order]
    run.kv = [run.kv[i] for i in order] if run.kv else []


class _Group:
    """One group played on a scheduler of its own, so that no block or hash of an earlier group is left."""

    def __init__(
        self, driver: EngineDriver, group: Group, run: ForcedRun, routes: RouteProbe, kv: KVProbe, keep_kv: bool
    ) -> None:
        self.driver, self.group, self.run = driver, group, run
        self.routes, self.kv, self.keep_kv = routes, kv, keep_kv
        self.facts = GroupFacts(group.name, len(group.prompts))
        self.running = ("", 0)  # phase and batch of the step that is running
        run.groups.append(self.facts)

    def play(self) -> None:
        engine = self.driver.engine
        scheduler = engine.scheduler = fresh_scheduler(self.driver)
        pairs = zip(self.group.prompts, self.group.forced, strict=True)
        self.seqs = [
            self.driver.add(list(prompt), SamplingSpec(max_tokens=len(forced), ignore_eos=True))
            for prompt, forced in pairs
        ]
        self.index = {seq.seq_id: number for number, seq in enumerate(self.seqs)}
        while not scheduler.is_finished():
            batch, is_prefill = scheduler.schedule()
            self.running = ("prefill" if is_prefill else "decode", len(batch))
            logits = self._run_step(batch, is_prefill)
            next_ids = [self._next_id(seq) for seq in batch]
            self._keep_rows(batch, logits, next_ids)
            scheduler.postprocess(batch, next_ids, is_prefill)
        for seq in self.seqs:
            getattr(engine, "requests", {}).pop(seq.seq_id, None)  # finished outside step(): nobody else will

    def _next_id(self, seq: Any) -> int:
        """The preset id that follows what is known; a middle chunk's is discarded by postprocess."""
        number: int = seq.num_completion_tokens
        return self.group.forced[self.index[seq.seq_id]][number]

    def _run_step(self, batch: list[Any], is_prefill: bool) -> Float32:
        """[N, vocab] logits of the step, with everything around them checked and recorded."""
        runner = self.driver.engine.model_runner
        prepared = runner.prepare_prefill(batch) if is_prefill else runner.prepare_decode(batch)
        self.inputs = step_inputs(self.driver, prepared)
        self.kv.before(self._history(), self.inputs["slot_mapping"])
        self.routes.batch = len(batch)
        logits = run_model(self.driver, prepared, is_prefill)
        route, check = self.routes.take(), self.kv.after()
        self.facts.steps.append(
            {
                "phase": self.running[0],
                "batch": len(batch),
                "positions": len(self.inputs["positions"]),
                "route": route.name,
                "padding_rows": len(route.padding),
                "padding_safe": route.padding_safe,
                "history_unchanged": check.history_unchanged,
                "others_unchanged": check.others_unchanged,
            }
        )
        return logits

    def _history(self) -> list[int]:
        """Slots of every live sequence's valid positions."""
        size = self.driver.block_size
        return [seq.block_table[p // size] * size + p % size for seq in self.seqs for p in range(seq.num_cached_tokens)]

    def _keep_rows(self, batch: list[Any], logits: Float32, next_ids: list[int]) -> None:
        """A row for each sequence whose known tokens end in this step."""
        ends = (np.asarray(self.inputs["cu_seqlens_q"] or range(len(batch) + 1))[1:] - 1).tolist()
        for seq, row, end, next_id in zip(batch, logits, ends, next_ids, strict=True):
            if seq.num_cached_tokens + seq.num_scheduled_tokens < seq.num_tokens:
                continue
            position, input_id = self.inputs["positions"][end], self.inputs["input_ids"][end]
            request, round_ = self.index[seq.seq_id], seq.num_completion_tokens + 1
            who = identity(self.group.name, request, round_, list(seq.token_ids), position, input_id, next_id)
            state = {
                "phase": self.running[0],
                "cached": seq.num_cached_tokens,
                "scheduled": seq.num_scheduled_tokens,
                "slot": self.inputs["slot_mapping"][end],
            }
            self.run.rows.append(who | state)
            self.run.logits.append(row)
            if self.keep_kv:
                self.run.kv.append(self.kv.new_kv([state["slot"]])[0])


def fresh_scheduler(driver: EngineDriver) -> Any:
    """An empty scheduler and block manager with the live engine's settings."""
    engine = driver.engine
    config = engine.model_runner.config if driver.source.kind == "upstream" else engine.config
    return driver.source.module("engine.scheduler").Scheduler(config)


def run_model(driver: EngineDriver, prepared: Any, is_prefill: bool) -> Float32:
    """[N, vocab] float32 logits of a prepared step, copied off the device."""
    runner = driver.engine.model_runner
    if driver.source.kind == "upstream":
        logits = runner.run_model(*prepared, is_prefill)
        driver.source.module("utils.context").reset_context()
    else:
        logits = runner.run_model(prepared).logits
    rows: Float32 = logits.float().cpu().numpy().copy()
    return rows
