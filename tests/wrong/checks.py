"""The named checks: each drives one engine and returns what is wrong, in words; an empty list means nothing.

They are the suite's own means (the audit, the scenes of appendix B, the scenarios of section 5.4.2, the recorded
steps), given names so that a deliberately wrong engine can say by which of them it must be caught.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nanolab.cases import scheduling, scheduling_memory, scheduling_practice
from nanolab.cases.scheduling import Engine
from nanolab.cases.scheduling_audit import Arrival, Workload, audit
from nanolab.sources import EngineSource

TRACES = Path(__file__).parent.parent / "data" / "upstream-scheduler-traces.jsonl.gz"
Check = Callable[[EngineSource], list[str]]


def default(source: EngineSource) -> Engine:
    return Engine.of(source, beside=True)


def chunks_and_budget(source: EngineSource) -> list[str]:
    """Long and short prompts under a small token budget."""
    arrivals = tuple(Arrival(tuple(range(start, start + length)), 3) for start, length in ((0, 30), (100, 5), (200, 7)))
    return audit(default(source), Workload(4, 32, 8, 4, arrivals)).problems


def case_d(source: EngineSource) -> list[str]:
    """Section 5.2.4's step lists."""
    engine = default(source)
    return [
        line
        for budget in (512, 256)
        for line in scheduling.case_d_differences(scheduling.run_case_d(engine, budget), budget)
    ]


def preemption(source: EngineSource) -> list[str]:
    """B.2.2: three prompts on four blocks."""
    return scheduling_memory.preempt(default(source))[1]


def reference_counts(source: EngineSource) -> list[str]:
    """B.6: two shared blocks, and a prompt of exactly two blocks."""
    return scheduling_memory.refs(default(source))[1]


def shared_prefixes(source: EngineSource) -> list[str]:
    """Prompts that share prefixes in time and one after another, in a pool that has to reuse blocks."""
    stem, other = (1, 2, 3, 4, 5, 6), (9, 9, 3, 4, 5, 6)
    arrivals = (
        Arrival((*stem, 7, 7), 3), Arrival((*stem, 8), 4, step=2), Arrival((*other, 7), 3, step=3),
        Arrival((*stem, 7, 7, 7), 2, step=9), Arrival(stem, 2, step=12), Arrival((*other, 8), 2, step=14),
        Arrival(tuple(range(50, 66)), 2, step=18), Arrival((*stem, 8), 2, step=24),
    )  # fmt: skip
    return audit(default(source), Workload(2, 10, 16, 4, arrivals)).problems


def colliding_hashes(source: EngineSource) -> list[str]:
    """The same with a hash function that knows only two values: token ids must be compared as well."""
    engine = default(source)
    module = engine.load("engine.block_manager")
    original = module.hash_block
    module.hash_block = lambda previous, token_ids: sum(token_ids) % 2
    try:
        return shared_prefixes(source)
    finally:
        module.hash_block = original


def rotation(source: EngineSource) -> list[str]:
    """Six sequences await decode, a batch holds two: `balanced` must reach all six."""
    engine = Engine.of(source, "balanced", beside=True)
    scenario = next(each for each in scheduling_practice.SCENARIOS if each.name == "rotation")
    played = {
        "default": scheduling_practice.play(scenario, default(source)),
        "balanced": scheduling_practice.play(scenario, engine),
    }
    arrivals = tuple(Arrival((number, number + 1), 6) for number in range(6))
    return scenario.judge(played)[1] + audit(engine, Workload(4, 32, 8, 2, arrivals)).problems


def alternation(source: EngineSource) -> list[str]:
    """A long prompt arrives while short ones decode: `balanced` must take turns, and chunks survive preemptions."""
    engine = Engine.of(source, "balanced", beside=True)
    arrivals = (Arrival((1, 2), 14), Arrival((3, 4), 14), Arrival(tuple(range(10, 34)), 2, step=2))
    roomy = audit(engine, Workload(4, 32, 4, 4, arrivals)).problems
    tight = audit(engine, Workload(2, 16, 4, 4, arrivals)).problems
    return roomy + tight


def recorded_steps(source: EngineSource) -> list[str]:
    """The first 40 workloads recorded from upstream's scheduler: batches, queues and block tables of every step."""
    engine = default(source)
    with gzip.open(TRACES, "rt") as lines:
        for number, line in enumerate(islice(lines, 40)):
            if wrong := first_difference(engine, json.loads(line)):
                return [f"workload {number}: {wrong}"]
    return []


def first_difference(engine: Engine, workload: dict[str, Any]) -> str:
    recorded = workload["config"]
    scheduler = engine.scheduler(
        block_size=recorded["block_size"], num_blocks=recorded["num_blocks"],
        max_num_batched_tokens=recorded["max_num_batched_tokens"], max_num_seqs=recorded["max_num_seqs"],
    )  # fmt: skip
    scheduler.eos = frozenset({recorded["eos"]})
    arrivals = list(enumerate(workload["requests"]))
    for number, step in enumerate(workload["steps"]):
        while arrivals and step["clock"] >= arrivals[0][1]["arrive"]:
            request_id, request = arrivals.pop(0)
            seq = engine.sequence(request_id, request["prompt"], request["max_tokens"], recorded["block_size"])
            seq.ignore_eos = request["ignore_eos"]
            scheduler.add(seq)
        seqs, is_prefill = scheduler.schedule()
        batch = [[s.seq_id, s.num_tokens, s.num_cached_tokens, s.num_scheduled_tokens, s.block_table] for s in seqs]
        if [("prefill" if is_prefill else "decode"), batch] != [step["phase"], step["batch"]]:
            return f"step {number} is {batch}, recorded {step['batch']}"
        scheduler.postprocess(seqs, step["sampled"], is_prefill)
        queues = [[s.seq_id for s in queue] for queue in (scheduler.waiting, scheduler.running)]
        if queues != [step["waiting"], step["running"]]:
            return (
                f"after step {number} waiting and running are {queues}, recorded {[step['waiting'], step['running']]}"
            )
    return ""


def padded_rows(source: EngineSource) -> list[str]:
    """A decode step padded from one row to four writes one slot of the cache and no other."""
    import torch

    engine = default(source)
    workload = Workload(4, 8, 16, 4, (Arrival((1, 2, 3), 4),))
    wrong = audit(engine, workload).problems
    cache = [torch.zeros(8, 4, 1, 2) for _ in "kv"]
    ones = torch.ones(4, 1, 2)
    step = SimpleNamespace(slot_mapping=torch.tensor([5, -1, -1, -1], dtype=torch.int32))
    engine.load("layers.attention_torch").TorchBackend(1.0).store(ones, ones, *cache, step)
    for name, tensor in zip("KV", cache, strict=True):
        written = tensor.flatten(0, 1).sum((1, 2)).nonzero().flatten().tolist()
        if written != [5]:
            wrong.append(f"a padded row wrote the {name} cache: slots {written} were written, only 5 may be")
    return wrong


ALL = (
    chunks_and_budget, case_d, preemption, reference_counts, shared_prefixes, colliding_hashes,
    rotation, alternation, recorded_steps, padded_rows,
)  # fmt: skip
CHECKS: dict[str, Check] = {check.__name__: check for check in ALL}
NEEDS_BALANCED = {"rotation", "alternation"}
