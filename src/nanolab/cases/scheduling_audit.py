"""Plays a workload on a real scheduler and says everything that goes wrong, in words.

Beside the block accounting (cases/scheduling.py) it keeps a model of the KV pool's contents: each slot remembers which
token history was written there, so a sequence that would read another one's keys, a stale block, or a slot that nobody
wrote is caught whatever the mechanism behind it. The engine's own input builder is checked against the same formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from nanolab.cases.scheduling import MIDDLE_CANDIDATE, Engine, SchedulerBench, accounting_problems

MAX_PROBLEMS = 5


@dataclass(frozen=True)
class Arrival:
    """One request; `abort_at` counts steps after its arrival, None lets it run."""

    prompt: tuple[int, ...]
    max_tokens: int
    step: int = 0
    abort_at: int | None = None


@dataclass(frozen=True)
class Workload:
    block_size: int
    num_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    arrivals: tuple[Arrival, ...]

    @property
    def sizes(self) -> dict[str, int]:
        names = ("block_size", "num_blocks", "max_num_batched_tokens", "max_num_seqs")
        return {name: getattr(self, name) for name in names}

    def step_limit(self) -> int:
        """More steps than any correct scheduler needs: every step accepts a token, computes a chunk, or waits for an
        arrival, and a prompt is prefilled again at most once for every token it accepts."""
        longest = max(len(a.prompt) + a.max_tokens for a in self.arrivals)
        chunks = -(-longest // self.max_num_batched_tokens)
        return 10 + max(a.step for a in self.arrivals) + sum(a.max_tokens + 1 for a in self.arrivals) * (chunks + 1)


@dataclass
class Audit:
    """What happened: number of steps, and everything that was wrong."""

    steps: int = 0
    preemptions: int = 0
    shared_blocks: int = 0
    problems: list[str] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)

    def add(self, step: int, lines: list[str]) -> None:
        self.problems += [f"step {step}: {line}" for line in lines]


class Histories:
    """For every sequence, an id of the tokens up to each position: equal ids mean equal histories."""

    def __init__(self) -> None:
        self._ids: dict[int, list[int]] = {}

    def of(self, seq: Any) -> list[int]:
        ids = self._ids.setdefault(seq.seq_id, [])
        for position in range(len(ids), seq.num_tokens):
            ids.append(hash((ids[-1] if ids else 0, seq.token_ids[position])))
        return ids


class KvContents:
    """Which history each slot of the pool holds."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[int, int] = {}
        self.histories = Histories()

    def slot(self, seq: Any, position: int) -> int | None:
        page = position // self.block_size
        if page >= len(seq.block_table):
            return None
        return int(seq.block_table[page]) * self.block_size + position % self.block_size

    def run(self, seqs: Sequence[Any]) -> list[str]:
        """Write what the step computes, then read what its attention reads."""
        wrong: list[str] = []
        writers: dict[int, int] = {}
        for seq in seqs:
            for position in range(seq.num_cached_tokens, seq.num_cached_tokens + seq.num_scheduled_tokens):
                slot = self.slot(seq, position)
                if slot is None:
                    wrong.append(f"sequence {seq.seq_id} has no block for position {position}")
                    break
                if slot in writers:
                    wrong.append(f"sequences {writers[slot]} and {seq.seq_id} both write slot {slot}")
                writers[slot] = seq.seq_id
                self.slots[slot] = self.histories.of(seq)[position]
        return wrong + [line for seq in seqs for line in self.read(seq)]

    def read(self, seq: Any) -> list[str]:
        history = self.histories.of(seq)
        for position in range(seq.num_cached_tokens + seq.num_scheduled_tokens):
            slot = self.slot(seq, position)
            if slot is None or self.slots.get(slot) != history[position]:
                return [
                    f"sequence {seq.seq_id} reads slot {slot} for position {position}, which "
                    f"{'nobody wrote' if slot not in self.slots else 'holds the keys of other tokens'}"
                ]
        return []


class InputsCheck:
    """The engine's own input builder, compared with the slot formula and the padding rule."""

    PADDING: ClassVar = {"slot_mapping": -1, "context_lens": 0}

    def __init__(self, engine: Engine, sizes: dict[str, int]) -> None:
        import torch

        config = SimpleNamespace(
            max_num_seqs=sizes["max_num_seqs"],
            max_num_batched_tokens=sizes["max_num_batched_tokens"],
            kvcache_block_size=sizes["block_size"],
            max_blocks_per_seq=sizes["num_blocks"] + 1,
        )
        self.buffer = engine.load("engine.step_buffer").StepBuffer(config, torch.device("cpu"))
        self.builder = engine.load("engine.input_builder").InputBuilder(config, self.buffer)

    def check(self, seqs: Sequence[Any], is_prefill: bool, contents: KvContents) -> list[str]:
        header = self.builder.prefill(seqs) if is_prefill else self.builder.decode(seqs)
        layout = self.buffer.layout_of(header)
        spans = [(s, range(s.num_cached_tokens, s.num_cached_tokens + s.num_scheduled_tokens)) for s in seqs]
        wanted = {
            "input_ids": [s.token_ids[p] for s, positions in spans for p in positions],
            "positions": [p for _, positions in spans for p in positions],
            "slot_mapping": [contents.slot(s, p) for s, positions in spans for p in positions],
            "context_lens": [s.num_cached_tokens + s.num_scheduled_tokens for s in seqs],
        }
        wrong = []
        for name, values in wanted.items():
            seen = self.buffer.host_field(layout, name).tolist()
            if seen[: len(values)] != values:
                wrong.append(f"the runner gets {name} {seen[: len(values)]}, it must be {values}")
            padding = self.PADDING.get(name)
            if padding is not None and any(value != padding for value in seen[len(values) :]):
                wrong.append(
                    f"a padded row has {name} {seen[len(values) :]}, so it would touch the cache; it must be {padding}"
                )
        return wrong


class Fairness:
    """`balanced`: nobody in `running` waits for more decode steps than its place in the queue explains, and the phases
    take turns whenever both can run."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.allowed: dict[int, int] = {}  # decode steps a running sequence may still have to wait
        self.phase = ""

    def before(self) -> None:
        self.was_running = list(self.scheduler.running)
        head = self.scheduler.waiting[0] if self.scheduler.waiting else None
        manager = self.scheduler.block_manager
        self.could_prefill = head is not None and (bool(head.block_table) or manager.can_allocate(head) >= 0)
        places = {seq.seq_id: place for place, seq in enumerate(self.was_running)}
        batch = self.scheduler.max_num_seqs
        self.allowed = {i: min(self.allowed.get(i, place // batch), place // batch) for i, place in places.items()}

    def after(self, seqs: Sequence[Any], is_prefill: bool) -> list[str]:
        wrong: list[str] = []
        phase = "prefill" if is_prefill else "decode"
        still_running = [seq for seq in self.was_running if seq.status.name == "RUNNING"]
        if phase == self.phase == "prefill" and still_running:
            wrong.append(f"two prefill steps in a row while {len(still_running)} sequence(s) could decode")
        if phase == self.phase == "decode" and self.could_prefill:
            wrong.append("two decode steps in a row while the head of waiting could be prefilled")
        if not is_prefill:
            served = {seq.seq_id for seq in seqs}
            for seq in still_running:
                if seq.seq_id in served:
                    self.allowed.pop(seq.seq_id, None)
                elif self.allowed.get(seq.seq_id, 0) == 0:
                    wrong.append(f"sequence {seq.seq_id} is not reached by the decode step whose turn it was")
                else:
                    self.allowed[seq.seq_id] -= 1
        if seqs:
            self.phase = phase
        return wrong


def audit(engine: Engine, workload: Workload, choose: Any = None, eos: int | None = None) -> Audit:
    """Play `workload` to its end, or until MAX_PROBLEMS are found. `choose(seq)` gives the accepted token."""
    return _Player(engine, workload, choose, eos).play()


class _Player:
    def __init__(self, engine: Engine, workload: Workload, choose: Any, eos: int | None) -> None:
        self.workload = workload
        self.engine = engine
        self.scheduler = engine.scheduler(**workload.sizes)
        if eos is not None:
            self.scheduler.eos = frozenset({eos})
        self.choose = choose or (lambda seq: seq.seq_id * 1000 + seq.num_tokens)
        self.contents = KvContents(workload.block_size)
        self.inputs = InputsCheck(engine, workload.sizes)
        self.fairness = Fairness(self.scheduler) if engine.policy == "balanced" else None
        self.seqs: list[Any] = []
        self.audit = Audit()

    def play(self) -> Audit:
        audit, limit = self.audit, self.workload.step_limit()
        coming = sorted(self.workload.arrivals, key=lambda arrival: arrival.step)
        aborts: dict[int, list[Any]] = {}
        while audit.steps < limit and len(audit.problems) < MAX_PROBLEMS:
            while coming and coming[0].step <= audit.steps:
                arrival = coming.pop(0)
                seq = self.add(arrival)
                if arrival.abort_at is not None:
                    aborts.setdefault(audit.steps + arrival.abort_at, []).append(seq)
            for seq in aborts.pop(audit.steps, []):
                self.abort(seq)
            if not self.scheduler.is_finished():
                if not self.survives_step():
                    break
            elif not coming and not aborts:
                break
            audit.steps += 1
        else:
            if audit.steps >= limit:
                stuck = [seq.seq_id for seq in self.seqs if seq.status.name != "FINISHED"]
                audit.problems.append(f"sequences {stuck} have not ended after {limit} steps")
        self.conclude()
        return audit

    def add(self, arrival: Arrival) -> Any:
        seq = self.engine.sequence(len(self.seqs), list(arrival.prompt), arrival.max_tokens, self.workload.block_size)
        seq.ignore_eos = False
        self.seqs.append(seq)
        self.scheduler.add(seq)
        return seq

    def abort(self, seq: Any) -> None:
        if seq.status.name == "FINISHED":
            return
        self.scheduler.abort(seq)
        found = accounting_problems(self.scheduler, self.seqs)
        if seq.finish_reason != "cancelled":
            found.append(f"an aborted sequence has finish reason {seq.finish_reason}")
        self.audit.add(self.audit.steps, [f"after an abort: {line}" for line in found])

    def survives_step(self) -> bool:
        """Step once; an engine that stops with an exception after something went wrong has said enough."""
        try:
            self.step()
        except Exception as error:
            if not self.audit.problems:
                raise
            self.audit.problems.append(f"step {self.audit.steps}: stopped with {type(error).__name__}: {error}")
            return False
        return True

    def step(self) -> None:
        scheduler, sizes = self.scheduler, self.workload
        held = {seq.seq_id: len(seq.block_table) for seq in self.seqs}
        if self.fairness:
            self.fairness.before()
        seqs, is_prefill = scheduler.schedule()
        wrong = self.batch_problems(seqs, is_prefill)
        self.audit.preemptions += sum(
            1 for s in self.seqs if held[s.seq_id] and not s.block_table and s.status.name == "WAITING"
        )
        shared = [b.ref_count for b in scheduler.block_manager.blocks if b.ref_count > 1]
        self.audit.shared_blocks = max(self.audit.shared_blocks, len(shared))
        wrong += self.contents.run(seqs)
        if seqs and not wrong:
            wrong += self.inputs.check(seqs, is_prefill, self.contents)
        candidates = [SchedulerBench.candidate(seq, is_prefill) for seq in seqs]
        accepted = [c if c == MIDDLE_CANDIDATE else self.choose(s) for c, s in zip(candidates, seqs, strict=True)]
        scheduler.postprocess(seqs, accepted, is_prefill)
        ended = scheduler.take_exhausted()
        if not seqs and not ended:
            wrong.append("nothing was scheduled although requests remain")
        wrong += accounting_problems(scheduler, self.seqs) + self.state_problems(sizes)
        if self.fairness:
            wrong += self.fairness.after(seqs, is_prefill)
        self.audit.add(self.audit.steps, wrong)

    def batch_problems(self, seqs: Sequence[Any], is_prefill: bool) -> list[str]:
        sizes, wrong = self.workload, []
        if len(seqs) > sizes.max_num_seqs:
            wrong.append(f"{len(seqs)} sequences in a batch, max_num_seqs is {sizes.max_num_seqs}")
        if len({seq.seq_id for seq in seqs}) != len(seqs):
            wrong.append("a sequence is in the batch twice")
        scheduled = sum(seq.num_scheduled_tokens for seq in seqs)
        if is_prefill and scheduled > sizes.max_num_batched_tokens:
            wrong.append(f"{scheduled} prompt tokens in a step, the budget is {sizes.max_num_batched_tokens}")
        if any(seq.num_scheduled_tokens < 1 for seq in seqs):
            wrong.append("a selected sequence has nothing scheduled")
        for seq in seqs[1:] if is_prefill else []:
            if seq.num_cached_tokens + seq.num_scheduled_tokens < seq.num_tokens:
                wrong.append(f"sequence {seq.seq_id} is chunked although it is not the first of its batch")
        return wrong

    def state_problems(self, sizes: Workload) -> list[str]:
        wrong = []
        for seq in self.seqs:
            if seq.status.name == "RUNNING" and seq.num_tokens != seq.num_cached_tokens + 1:
                wrong.append(f"running sequence {seq.seq_id}: total {seq.num_tokens}, cached {seq.num_cached_tokens}")
            if seq.num_scheduled_tokens:
                wrong.append(
                    f"sequence {seq.seq_id} still has {seq.num_scheduled_tokens} tokens scheduled after the step"
                )
            if MIDDLE_CANDIDATE in seq.token_ids:
                wrong.append(f"sequence {seq.seq_id} accepted the candidate of a middle prefill chunk")
            if seq.num_completion_tokens > seq.max_tokens:
                wrong.append(
                    f"sequence {seq.seq_id} has {seq.num_completion_tokens} outputs, its limit is {seq.max_tokens}"
                )
            if seq.status.name == "WAITING" and not seq.block_table and seq.num_cached_tokens:
                wrong.append(
                    f"waiting sequence {seq.seq_id} holds no block but says {seq.num_cached_tokens} tokens are cached"
                )
        return wrong

    def conclude(self) -> None:
        audit, manager = self.audit, self.scheduler.block_manager
        audit.reasons = [seq.finish_reason for seq in self.seqs]
        audit.outputs = [list(seq.completion_token_ids) for seq in self.seqs]
        if audit.problems:
            return
        if len(manager.free_block_ids) != len(manager.blocks):
            audit.problems.append(f"{len(manager.blocks) - len(manager.free_block_ids)} blocks are not free at the end")
        for seq in self.seqs:
            fits = -(-seq.num_tokens // self.workload.block_size) <= self.workload.num_blocks
            if seq.finish_reason == "kv_exhausted" and fits:
                audit.problems.append(f"sequence {seq.seq_id} ended kv_exhausted although the pool could hold it")
            if seq.finish_reason == "length" and seq.num_completion_tokens != seq.max_tokens:
                audit.problems.append(f"sequence {seq.seq_id} ended by length with {seq.num_completion_tokens} outputs")
