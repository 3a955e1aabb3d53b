"""Cases A to D of section 5.2: run a few requests step by step, keep every state, compare with the known values.

A state is written the manual's way: total / cached / scheduled tokens before the model runs, total / cached after.
Sequences are named R1, R2, ... in the order they were added, because an engine's ids need not start at 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nanolab.observe import RunnerProbe, ShapeProbe
from nanolab.sources import EngineDriver, SamplingSpec

BLOCK_SIZE = 256
ENGINE_OPTIONS: dict[str, Any] = {
    "enforce_eager": True,
    "tensor_parallel_size": 1,
    "kvcache_block_size": BLOCK_SIZE,
    "max_model_len": 1024,
    "gpu_memory_utilization": 0.5,
}


@dataclass(frozen=True)
class Case:
    name: str
    title_en: str
    title_zh: str
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]


CASES = {
    "A": Case("A", "Case A: one short request", "案例 A：一个短请求", ((11, 12, 13),), (3,)),
    "B": Case(
        "B", "Case B: two requests, one leaves early", "案例 B：两个请求，一个先离开",
        ((21, 22, 23), (31, 32, 33, 34)), (2, 5),
    ),
    "C": Case("C", "Case C: crossing position 256", "案例 C：越过第 256 个位置", (tuple(range(100, 356)),), (3,)),
    "D": Case(
        "D", "Case D: a prompt larger than the budget", "案例 D：超过预算的提示",
        (tuple(11 + i % 380 for i in range(700)), tuple(400 + i for i in range(32))), (2, 2),
    ),
}  # fmt: skip


@dataclass
class Step:
    """One step: who ran, with which counts before and after, and what the runner sent to the model."""

    phase: str
    batch: list[str]  # names, in batch order
    known_before: dict[str, list[int]]  # before scheduling: total, cached, num_blocks, len(block_table)
    before: dict[str, list[int]]  # total, cached, scheduled
    blocks: dict[str, list[int]]  # block table the model used
    inputs: dict[str, Any]
    shapes: dict[str, list[int]]
    after: dict[str, list[Any]] = field(default_factory=dict)  # total, cached, outputs, status, number of blocks
    free_blocks: int = 0
    waiting: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)


@dataclass
class Walk:
    steps: list[Step]
    output_counts: list[int]
    free_at_start: int
    block_size: int

    def result(self) -> dict[str, Any]:
        """The facts of a result block; long lists are shortened to their ends."""
        return {
            "steps": len(self.steps),
            "output_counts": self.output_counts,
            "trace": [self._row(step) for step in self.steps],
        }

    def _row(self, step: Step) -> dict[str, Any]:
        shown = {name: shorten(value) for name, value in step.inputs.items()}
        rest = ("phase", "known_before", "before", "blocks", "after", "waiting", "running")
        return {name: getattr(step, name) for name in rest} | {
            "free_blocks": relative(step.free_blocks, self.free_at_start),
            "input_shape": [len(step.inputs["input_ids"])],
            "inputs": shown,
            "shapes": step.shapes,
        }


def shorten(value: Any, ends: int = 3) -> Any:
    if isinstance(value, list) and len(value) > 4 * ends:
        return [*value[:ends], f"... {len(value) - 2 * ends} more ...", *value[-ends:]]
    return value


def relative(count: int, start: int) -> str:
    return "F" if count == start else f"F{count - start:+d}"


def run_walk(driver: EngineDriver, case: Case, on_step: Callable[[Step], None] | None = None) -> Walk:
    """Add the case's requests together and step until all have finished."""
    free_at_start = driver.free_blocks
    limits = [SamplingSpec(max_tokens=limit, ignore_eos=True) for limit in case.max_tokens]
    seqs = [driver.add(list(prompt), limit) for prompt, limit in zip(case.prompts, limits, strict=True)]
    names = {seq.seq_id: f"R{number}" for number, seq in enumerate(seqs, 1)}
    seen: list[dict[str, Any]] = []
    runner, shapes = RunnerProbe(driver, seen.append), ShapeProbe(driver)
    steps: list[Step] = []
    try:
        while driver.has_work():
            known = {
                names[s.seq_id]: [s.num_tokens, s.num_cached_tokens, s.num_blocks, len(s.block_table)]
                for s in [*driver.waiting, *driver.running]
            }
            record = driver.step()
            step = Step(
                phase=record.phase,
                batch=[names[state.seq_id] for state in record.batch],
                known_before=known,
                before={names[s.seq_id]: [s.total, s.cached, s.scheduled] for s in record.batch},
                blocks={names[s.seq_id]: list(s.blocks) for s in record.batch},
                inputs=seen.pop(),
                shapes=shapes.take(),
            )
            ran = {state.seq_id for state in record.batch}
            for seq in seqs:
                if seq.seq_id in ran:
                    counts = [seq.num_tokens, seq.num_cached_tokens, seq.num_completion_tokens]
                    step.after[names[seq.seq_id]] = [*counts, seq.status.name, len(seq.block_table)]
            step.free_blocks = driver.free_blocks
            step.waiting = [names[s.seq_id] for s in driver.waiting]
            step.running = [names[s.seq_id] for s in driver.running]
            steps.append(step)
            if on_step:
                on_step(step)
    finally:
        runner.detach()
        shapes.detach()
    return Walk(steps, [s.num_completion_tokens for s in seqs], free_at_start, driver.block_size)


# ---- what must be seen -----------------------------------------------------------------------------------

Row = tuple[str, dict[str, list[int]], dict[str, list[Any]], str]  # phase, before, after, free blocks

DONE = ["FINISHED", 0]


def going(total: int, cached: int, outputs: int, blocks: int) -> list[Any]:
    return [total, cached, outputs, "RUNNING", blocks]


def ended(total: int, outputs: int) -> list[Any]:
    return [total, 0, outputs, *DONE]


CASE_A: list[Row] = [
    ("prefill", {"R1": [3, 0, 3]}, {"R1": going(4, 3, 1, 1)}, "F-1"),
    ("decode", {"R1": [4, 3, 1]}, {"R1": going(5, 4, 2, 1)}, "F-1"),
    ("decode", {"R1": [5, 4, 1]}, {"R1": ended(6, 3)}, "F"),
]
CASE_B: list[Row] = [
    ("prefill", {"R1": [3, 0, 3], "R2": [4, 0, 4]}, {"R1": going(4, 3, 1, 1), "R2": going(5, 4, 1, 1)}, "F-2"),
    ("decode", {"R1": [4, 3, 1], "R2": [5, 4, 1]}, {"R1": ended(5, 2), "R2": going(6, 5, 2, 1)}, "F-1"),
    ("decode", {"R2": [6, 5, 1]}, {"R2": going(7, 6, 3, 1)}, "F-1"),
    ("decode", {"R2": [7, 6, 1]}, {"R2": going(8, 7, 4, 1)}, "F-1"),
    ("decode", {"R2": [8, 7, 1]}, {"R2": ended(9, 5)}, "F"),
]
CASE_B_ONE_SEQ: list[Row] = [
    ("prefill", {"R1": [3, 0, 3]}, {"R1": going(4, 3, 1, 1)}, "F-1"),
    ("prefill", {"R2": [4, 0, 4]}, {"R2": going(5, 4, 1, 1)}, "F-2"),
    ("decode", {"R1": [4, 3, 1]}, {"R1": ended(5, 2)}, "F-1"),
    ("decode", {"R2": [5, 4, 1]}, {"R2": going(6, 5, 2, 1)}, "F-1"),
    *CASE_B[2:],
]
CASE_C: list[Row] = [
    ("prefill", {"R1": [256, 0, 256]}, {"R1": going(257, 256, 1, 1)}, "F-1"),
    ("decode", {"R1": [257, 256, 1]}, {"R1": going(258, 257, 2, 2)}, "F-2"),
    ("decode", {"R1": [258, 257, 1]}, {"R1": ended(259, 3)}, "F"),
]
D_MIDDLE = [700, 512, 0, "WAITING", 3]
D_ENDING: list[Row] = [
    (
        "prefill",
        {"R1": [700, 512, 188], "R2": [32, 0, 32]},
        {"R1": going(701, 700, 1, 3), "R2": going(33, 32, 1, 1)},
        "F-4",
    ),
    ("decode", {"R1": [701, 700, 1], "R2": [33, 32, 1]}, {"R1": ended(702, 2), "R2": ended(34, 2)}, "F"),
]
CASE_D_512: list[Row] = [("prefill", {"R1": [700, 0, 512]}, {"R1": D_MIDDLE}, "F-3"), *D_ENDING]
CASE_D_256: list[Row] = [
    ("prefill", {"R1": [700, 0, 256]}, {"R1": [700, 256, 0, "WAITING", 3]}, "F-3"),
    ("prefill", {"R1": [700, 256, 256]}, {"R1": D_MIDDLE}, "F-3"),
    *D_ENDING,
]

EXPECTED: dict[tuple[str, int, int], list[Row]] = {
    ("A", 512, 2): CASE_A,
    ("B", 512, 2): CASE_B,
    ("B", 512, 1): CASE_B_ONE_SEQ,
    ("C", 512, 2): CASE_C,
    ("D", 512, 2): CASE_D_512,
    ("D", 256, 2): CASE_D_256,
}


def expected_rows(case: str, budget: int, max_num_seqs: int) -> list[Row] | None:
    """The known rows for these settings; None when the manual states none (the run is then only collected)."""
    return EXPECTED.get((case, budget, max_num_seqs))


def differences(walk: Walk, rows: list[Row], case: Case) -> list[str]:
    """Every way in which the walk differs from the known values, one line each; empty means PASS."""
    wrong: list[str] = []

    def compare(what: str, seen: object, wanted: object) -> None:
        if seen != wanted:
            wrong.append(f"{what}: saw {seen}, expected {wanted}")

    compare("number of steps", len(walk.steps), len(rows))
    compare("output counts", walk.output_counts, list(case.max_tokens))
    for number, (step, (phase, before, after, free)) in enumerate(zip(walk.steps, rows, strict=False), 1):
        at = f"step {number}"
        compare(f"{at} phase", step.phase, phase)
        compare(f"{at} total/cached/scheduled before", step.before, before)
        compare(f"{at} total, cached, outputs, status, blocks after", step.after, after)
        compare(f"{at} free blocks", relative(step.free_blocks, walk.free_at_start), free)
    for number, step in enumerate(walk.steps, 1):
        wrong += [f"step {number} {line}" for line in input_differences(step, walk.block_size)]
    if case.name == "C" and len(walk.steps) == 3:
        wrong += crossing_differences(walk)
    return wrong


def input_differences(step: Step, block_size: int) -> list[str]:
    """The runner's inputs, recomputed from counts and block tables: positions, lengths, slots, shapes."""
    positions: list[int] = []
    slots: list[int] = []
    lengths_q: list[int] = []
    for name in step.batch:
        total, cached, scheduled = step.before[name]
        own = list(range(cached, cached + scheduled)) if step.phase == "prefill" else [total - 1]
        table = step.blocks[name]
        positions += own
        slots += [table[p // block_size] * block_size + p % block_size for p in own]
        lengths_q.append(len(own))
    wanted: dict[str, Any] = {"positions": positions, "slot_mapping": slots}
    ends = [step.before[name][1] + length for name, length in zip(step.batch, lengths_q, strict=True)]
    if step.phase == "prefill":
        wanted |= {"cu_seqlens_q": cumulative(lengths_q), "cu_seqlens_k": cumulative(ends)}
    else:
        wanted["context_lens"] = [step.before[name][0] for name in step.batch]
    wrong = [
        f"{name}: saw {shorten(step.inputs[name])}, expected {shorten(value)}"
        for name, value in wanted.items()
        if step.inputs[name] != value
    ]
    has_tables = step.inputs["block_tables"] is not None
    needs_tables = step.phase == "decode" or sum(ends) > sum(lengths_q)
    if has_tables != needs_tables:
        wrong.append(f"block tables present: {has_tables}, expected {needs_tables}")
    if step.shapes["embedding"][0] != len(positions):
        wrong.append(f"embedding rows: saw {step.shapes['embedding'][0]}, expected {len(positions)}")
    return wrong


def cumulative(lengths: list[int]) -> list[int]:
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    return bounds


def crossing_differences(walk: Walk) -> list[str]:
    """Case C: 257 known tokens own one block until the step that writes position 256 takes the second."""
    seen = [walk.steps[1].known_before["R1"], len(walk.steps[1].blocks["R1"]), len(walk.steps[2].blocks["R1"])]
    wanted = [[257, 256, 2, 1], 2, 2]
    return [] if seen == wanted else [f"crossing a block: saw {seen}, expected {wanted}"]
