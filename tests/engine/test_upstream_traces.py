"""The default policy replays 300 workloads recorded from the real upstream scheduler, field by field."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nanoengine.engine.scheduler import Scheduler
from nanoengine.engine.sequence import Sequence
from nanoengine.sampling_params import SamplingParams

TRACES = Path(__file__).parent.parent / "data" / "upstream-scheduler-traces.jsonl.gz"


def workloads() -> Iterator[dict[str, Any]]:
    with gzip.open(TRACES, "rt") as lines:
        yield from map(json.loads, lines)


def replay(workload: dict[str, Any]) -> int:
    recorded = workload["config"]
    scheduler = Scheduler(
        SimpleNamespace(
            max_num_seqs=recorded["max_num_seqs"],
            max_num_batched_tokens=recorded["max_num_batched_tokens"],
            eos=(recorded["eos"],),
            scheduling_policy="prefill_first",
            num_kvcache_blocks=recorded["num_blocks"],
            kvcache_block_size=recorded["block_size"],
        )
    )
    arrivals = list(enumerate(workload["requests"]))
    for step in workload["steps"]:
        while arrivals and step["clock"] >= arrivals[0][1]["arrive"]:
            request_id, request = arrivals.pop(0)
            params = SamplingParams(max_tokens=request["max_tokens"], ignore_eos=request["ignore_eos"])
            scheduler.add(Sequence(request_id, request["prompt"], params, recorded["block_size"]))
        seqs, is_prefill = scheduler.schedule()
        assert ("prefill" if is_prefill else "decode") == step["phase"]
        batch = [[s.seq_id, s.num_tokens, s.num_cached_tokens, s.num_scheduled_tokens, s.block_table] for s in seqs]
        assert batch == step["batch"]
        scheduler.postprocess(seqs, step["sampled"], is_prefill)
        after = [
            [s.seq_id, s.num_tokens, s.num_cached_tokens, s.num_completion_tokens, s.status.name, s.block_table]
            for s in seqs
        ]
        assert after == step["after"]
        assert [s.seq_id for s in scheduler.waiting] == step["waiting"]
        assert [s.seq_id for s in scheduler.running] == step["running"]
        assert len(scheduler.block_manager.free_block_ids) == step["free"]
    assert not arrivals
    assert scheduler.is_finished()
    return len(workload["steps"])


def test_every_field_of_every_step_matches_upstream() -> None:
    steps = [replay(workload) for workload in workloads()]
    assert len(steps) == 300
    assert sum(steps) > 10_000
