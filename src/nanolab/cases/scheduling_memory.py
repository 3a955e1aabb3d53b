"""Two small scenes of appendix B on the real block manager: a preemption (B.2.2) and reference counts (B.6)."""

from __future__ import annotations

from typing import Any

from nanolab.cases.scheduling import Engine, SchedulerBench

TEACHING_BLOCK = 4  # a real GPU engine needs multiples of its attention backend's page size


def preempt(engine: Engine) -> tuple[dict[str, Any], list[str]]:
    """Four blocks of four tokens, three prompts of four: at the first decode the pool is one block short.

    Returns the facts and every difference from what must be seen.
    """
    sizes = {"block_size": TEACHING_BLOCK, "num_blocks": 4, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    bench = SchedulerBench(engine, **sizes)
    for name, start in (("A", 11), ("B", 21), ("C", 31)):
        bench.add(name, range(start, start + 4), max_tokens=3)
    prefill, decode = bench.step(), bench.step()
    victim = bench.seqs["C"]
    facts: dict[str, Any] = {
        "prefill": prefill.row(),
        "decode": decode.row(),
        "selected": list(decode.before),
        "waiting": decode.waiting,
        "C": {
            "total": victim.num_tokens,
            "cached": victim.num_cached_tokens,
            "blocks": list(victim.block_table),
            "status": victim.status.name,
            "outputs": victim.num_completion_tokens,
        },
    }
    bench.run()
    again = [step.row() for step in bench.steps[2:] if "C" in step.before and step.phase == "prefill"]
    facts |= {"C_prefilled_again": [row["before"]["C"] for row in again], "free_at_end": bench.free_blocks}
    seen = {
        "blocks after the prefill": 4 - prefill.free_blocks,
        "selected": facts["selected"],
        "waiting": facts["waiting"],
        "A's blocks": len(decode.blocks["A"]),
        "B's blocks": len(decode.blocks.get("B", [])),
        "C": facts["C"],
        "C prefilled again": facts["C_prefilled_again"],
        "free at the end": facts["free_at_end"],
    }
    wanted = {
        "blocks after the prefill": 3,
        "selected": ["A", "B"],
        "waiting": ["C"],
        "A's blocks": 2,
        "B's blocks": 2,
        "C": {"total": 5, "cached": 0, "blocks": [], "status": "WAITING", "outputs": 1},
        "C prefilled again": [[5, 0, 5]],
        "free at the end": 4,
    }
    return facts, differences(seen, wanted) + bench.problems()


def refs(engine: Engine) -> tuple[dict[str, Any], list[str]]:
    """Two full blocks shared by up to two requests: their reference counts, and what stays after the last one leaves.

    Hashes of full blocks are registered as a step would do it; no KV is computed.
    """
    size = 256
    bench = SchedulerBench(engine, block_size=size, num_blocks=16, max_num_batched_tokens=4096, max_num_seqs=8)
    manager = bench.manager
    shared = list(range(512))

    def prompt(tail: int) -> list[int]:
        return [*shared, *range(10_000 * tail, 10_000 * tail + 108)]

    def sequence(token_ids: list[int]) -> Any:
        return engine.sequence(len(bench.seqs), token_ids, 1, size)

    first = sequence(prompt(1))
    manager.allocate(first, manager.can_allocate(first))
    blocks = list(first.block_table[:2])
    first.num_scheduled_tokens = first.num_tokens
    manager.hash_blocks(first)
    manager.deallocate(first)

    counts = [[manager.blocks[block].ref_count for block in blocks]]
    free_after_release = [block in manager.free_block_ids for block in blocks]
    hits, holders = [], []
    for tail in (2, 3):
        seq = sequence(prompt(tail))
        hits.append(manager.can_allocate(seq))
        manager.allocate(seq, hits[-1])
        holders.append(seq)
        counts.append([manager.blocks[block].ref_count for block in blocks])
    cached = holders[0].num_cached_tokens
    same_blocks = [holder.block_table[:2] == blocks for holder in holders]
    for seq in reversed(holders):
        manager.deallocate(seq)
        counts.append([manager.blocks[block].ref_count for block in blocks])
    exact = manager.can_allocate(sequence(shared))
    facts = {
        "ref_counts": counts,
        "hits_of_620": hits,
        "cached_tokens_of_620": cached,
        "hits_of_exactly_512": exact,
        "same_blocks": same_blocks,
        "free_after_release": free_after_release,
        "free_at_end": bench.free_blocks,
    }
    wanted = {
        "ref_counts": [[0, 0], [1, 1], [2, 2], [1, 1], [0, 0]],
        "hits_of_620": [2, 2],
        "cached_tokens_of_620": 512,
        "hits_of_exactly_512": 1,
        "same_blocks": [True, True],
        "free_after_release": [True, True],
        "free_at_end": 16,
    }
    return facts, differences(facts, wanted) + bench.problems()


def differences(seen: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return [f"{name}: saw {seen[name]}, expected {value}" for name, value in wanted.items() if seen[name] != value]
