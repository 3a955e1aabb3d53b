"""Drives the real scheduler, block manager and sequences of any engine on CPU, with synthetic tokens and no model.

`SchedulerBench` stands where the model runner stands: it takes each batch, makes up the candidate tokens and hands
them to `postprocess`. Everything else is the engine's own code. States are written the manual's way (cases/walk.py),
and `accounting_problems` says in words what is wrong with a pool.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from nanolab.cases import walk
from nanolab.errors import LabError
from nanolab.sources import EngineSource

# Candidates of middle prefill chunks: a token that must never be found in an output.
MIDDLE_CANDIDATE = 900_000_000


@dataclass(frozen=True)
class Engine:
    """One engine's scheduling classes; `load` imports a submodule, under an alias if two engines share a name."""

    source: EngineSource
    load: Callable[[str], ModuleType]
    policy: str = "prefill_first"

    @classmethod
    def of(cls, source: EngineSource, policy: str = "prefill_first", *, beside: bool = False) -> Engine:
        """LabError if the engine does not know `policy`. `beside` imports it under a name of its own, so that several
        engines can be driven by one process."""
        load = partial(source.isolated, alias_of(source)) if beside else source.module
        if policy != "prefill_first":
            fields = load("config").Config.__dataclass_fields__
            if "scheduling_policy" not in fields:
                raise source.missing_option("scheduling_policy")
            allowed = fields["scheduling_policy"].metadata.get("choices", (policy,))
            if policy not in allowed:
                raise LabError(f"scheduling_policy {policy!r} is not one of {', '.join(allowed)} in {source.root}")
        return cls(source, load, policy)

    @property
    def is_upstream(self) -> bool:
        return self.source.kind == "upstream"

    def scheduler(self, *, block_size: int, num_blocks: int, max_num_batched_tokens: int, max_num_seqs: int) -> Any:
        config = SimpleNamespace(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            num_kvcache_blocks=num_blocks,
            kvcache_block_size=block_size,
            scheduling_policy=self.policy,
            eos=-1 if self.is_upstream else (),
        )
        return self.load("engine.scheduler").Scheduler(config)

    def sequence(self, number: int, prompt: list[int], max_tokens: int, block_size: int) -> Any:
        params = self.load("sampling_params").SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        sequence_class = self.load("engine.sequence").Sequence
        if not self.is_upstream:
            return sequence_class(number, prompt, params, block_size)
        seq = sequence_class(prompt, params)
        seq.seq_id, seq.block_size = number, block_size  # upstream keeps both on the class
        return seq


def alias_of(source: EngineSource) -> str:
    """A package name that no other engine, and no other state of this one, has."""
    digest = hashlib.sha256(f"{source.root} {source.tree_sha256()}".encode()).hexdigest()
    return f"engine_{digest[:16]}"


@dataclass(frozen=True)
class Step:
    """One step: what was scheduled, and how everything stood after postprocess."""

    phase: str
    before: dict[str, list[int]]  # total, cached, scheduled
    blocks: dict[str, list[int]]  # block tables that the model would use
    after: dict[str, list[Any]]  # total, cached, outputs, status, number of blocks
    waiting: list[str]
    running: list[str]
    free_blocks: int

    def row(self) -> dict[str, Any]:
        return dict(self.__dict__)


class SchedulerBench:
    """A scheduler with named sequences; `step()` runs one step with made-up candidates."""

    def __init__(self, engine: Engine, **sizes: int) -> None:
        self.engine = engine
        self.block_size = sizes["block_size"]
        self.scheduler = engine.scheduler(**sizes)
        self.manager = self.scheduler.block_manager
        self.seqs: dict[str, Any] = {}
        self.steps: list[Step] = []

    @property
    def free_blocks(self) -> int:
        return len(self.manager.free_block_ids)

    def add(self, name: str, prompt: Iterable[int], max_tokens: int) -> Any:
        seq = self.engine.sequence(len(self.seqs), list(prompt), max_tokens, self.block_size)
        self.seqs[name] = seq
        self.scheduler.add(seq)
        return seq

    def name_of(self, seq: Any) -> str:
        return next(name for name, known in self.seqs.items() if known is seq)

    def names(self, seqs: Iterable[Any]) -> list[str]:
        return [self.name_of(seq) for seq in seqs]

    def has_work(self) -> bool:
        return not self.scheduler.is_finished()

    def step(self) -> Step:
        """Schedule, make up one candidate per sequence, postprocess. A middle chunk's candidate is a marked token."""
        seqs, is_prefill = self.scheduler.schedule()
        names = self.names(seqs)
        before = {
            n: [s.num_tokens, s.num_cached_tokens, s.num_scheduled_tokens] for n, s in zip(names, seqs, strict=True)
        }
        blocks = {n: list(s.block_table) for n, s in zip(names, seqs, strict=True)}
        self.scheduler.postprocess(seqs, [self.candidate(seq, is_prefill) for seq in seqs], is_prefill)
        if hasattr(self.scheduler, "take_exhausted"):
            self.scheduler.take_exhausted()
        step = Step(
            "prefill" if is_prefill else "decode",
            before,
            blocks,
            {n: self.state(s) for n, s in zip(names, seqs, strict=True)},
            self.names(self.scheduler.waiting),
            self.names(self.scheduler.running),
            self.free_blocks,
        )
        self.steps.append(step)
        return step

    @staticmethod
    def candidate(seq: Any, is_prefill: bool) -> int:
        reached: int = seq.num_cached_tokens + seq.num_scheduled_tokens
        if is_prefill and reached < seq.num_tokens:
            return MIDDLE_CANDIDATE
        return int(1_000_000 * (seq.seq_id + 1) + seq.num_tokens)

    @staticmethod
    def state(seq: Any) -> list[Any]:
        counts = [seq.num_tokens, seq.num_cached_tokens, seq.num_completion_tokens]
        return [*counts, seq.status.name, len(seq.block_table)]

    def run(self, limit: int = 1000) -> list[Step]:
        """Step until nothing is left; LabError if that does not happen within `limit` steps."""
        for _ in range(limit):
            if not self.has_work():
                return self.steps
            self.step()
        raise LabError(f"the scheduler still has work after {limit} steps: {self.names(self.scheduler.waiting)} wait")

    def problems(self) -> list[str]:
        return accounting_problems(self.scheduler, self.seqs.values())


# ---- what must hold between any two steps -----------------------------------------------------------------


def accounting_problems(scheduler: Any, seqs: Iterable[Any]) -> list[str]:
    """Everything that is wrong with the block accounting of a scheduler at rest, in words."""
    manager, seqs = scheduler.block_manager, list(seqs)
    free, used = list(manager.free_block_ids), set(manager.used_block_ids)
    owners = Counter(block_id for seq in seqs for block_id in seq.block_table)
    wrong: list[str] = []
    if len(free) != len(set(free)):
        wrong.append("a block is in the free list twice")
    if used & set(free):
        wrong.append(f"blocks {sorted(used & set(free))} are free and used at once")
    if len(used | set(free)) != len(manager.blocks):
        wrong.append(f"{len(manager.blocks) - len(used | set(free))} block(s) are lost: neither free nor used")
    for block in manager.blocks:
        if block.ref_count != owners[block.block_id]:
            wrong.append(f"block {block.block_id} counts {block.ref_count} owners but {owners[block.block_id]} hold it")
        if (block.ref_count > 0) != (block.block_id in used):
            wrong.append(
                f"block {block.block_id} with {block.ref_count} owner(s) is on the wrong side of the free list"
            )
    for block_hash, block_id in manager.hash_to_block_id.items():
        if manager.blocks[block_id].hash != block_hash:
            wrong.append(f"a stale hash still leads to block {block_id}, which holds something else now")
    return wrong + sequence_problems(scheduler, seqs)


def sequence_problems(scheduler: Any, seqs: list[Any]) -> list[str]:
    """Queues, states and ownership: who may hold blocks, and whose next positions lie in blocks of their own."""
    manager = scheduler.block_manager
    wrong: list[str] = []
    for seq in seqs:
        places = [name for name in ("waiting", "running") if seq in getattr(scheduler, name)]
        expected = {"WAITING": ["waiting"], "RUNNING": ["running"], "FINISHED": []}[seq.status.name]
        label = f"sequence {seq.seq_id} ({seq.status.name})"
        if places != expected:
            wrong.append(f"{label} stands in {places or 'no queue'}")
        if seq.status.name == "FINISHED" and (seq.block_table or seq.num_cached_tokens):
            wrong.append(f"{label} still holds {len(seq.block_table)} blocks and {seq.num_cached_tokens} cached tokens")
        if len(set(seq.block_table)) != len(seq.block_table):
            wrong.append(f"{label} lists a block twice: {seq.block_table}")
        if seq.num_cached_tokens > len(seq.block_table) * seq.block_size:
            wrong.append(f"{label} says {seq.num_cached_tokens} tokens are cached in {len(seq.block_table)} blocks")
        unwritten = seq.block_table[seq.num_cached_tokens // seq.block_size :]
        shared = [block_id for block_id in unwritten if manager.blocks[block_id].ref_count > 1]
        if shared:
            wrong.append(f"{label} is about to write into blocks {shared}, which others hold too")
    return wrong


def slot_problems(
    bench_blocks: dict[str, list[int]], before: dict[str, list[int]], block_size: int, phase: str
) -> list[str]:
    """Two sequences of one step must not write the same slot, and every position needs a block."""
    writers: dict[int, str] = {}
    wrong: list[str] = []
    for name, (total, cached, scheduled) in before.items():
        positions = range(cached, cached + scheduled) if phase == "prefill" else [total - 1]
        for position in positions:
            if position // block_size >= len(bench_blocks[name]):
                wrong.append(f"{name} has no block for position {position}")
                break
            slot = bench_blocks[name][position // block_size] * block_size + position % block_size
            if slot in writers:
                wrong.append(f"{name} and {writers[slot]} both write slot {slot}")
            writers[slot] = name
    return wrong


# ---- case D without a model --------------------------------------------------------------------------------


def run_case_d(engine: Engine, budget: int) -> list[Step]:
    """Case D of section 5.2 (prompts of 700 and 32 tokens) with the given prefill budget."""
    case = walk.CASES["D"]
    bench = SchedulerBench(
        engine, block_size=walk.BLOCK_SIZE, num_blocks=16, max_num_batched_tokens=budget, max_num_seqs=2
    )
    for number, (prompt, limit) in enumerate(zip(case.prompts, case.max_tokens, strict=True), 1):
        bench.add(f"R{number}", prompt, limit)
    return bench.run()


def case_d_differences(steps: list[Step], budget: int) -> list[str]:
    """Every way in which the steps differ from the values the manual states; empty means none."""
    rows = walk.expected_rows("D", budget, 2)
    if rows is None:
        raise LabError(f"the manual states no steps for a budget of {budget}; it states 512 and 256")
    free_at_start = 16
    wrong = [] if len(steps) == len(rows) else [f"budget {budget}: {len(steps)} steps, expected {len(rows)}"]
    for number, (step, (phase, before, after, free)) in enumerate(zip(steps, rows, strict=False), 1):
        seen = (step.phase, step.before, step.after, walk.relative(step.free_blocks, free_at_start))
        wanted = (phase, before, after, free)
        names = (
            "phase",
            "total/cached/scheduled before",
            "total, cached, outputs, status, blocks after",
            "free blocks",
        )
        for name, one, other in zip(names, seen, wanted, strict=True):
            if one != other:
                wrong.append(f"budget {budget} step {number} {name}: saw {one}, expected {other}")
    return wrong
