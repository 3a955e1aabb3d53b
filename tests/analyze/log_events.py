"""Logs written by hand, as small as a check needs them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Event = dict[str, Any]

RUN_FACTS: Event = {
    "engine": {"kind": "bundled", "tree_sha256": "t" * 64},
    "model": {"name": "tiny", "config_sha256": "c" * 64, "weights_sha256": "w" * 64, "synthetic": True},
    "device": {"kind": "cpu", "name": "a CPU", "count": 2, "driver": None, "cuda": None},
}


def write(path: Path, *events: Event | str) -> Path:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def edited(events: list[Event], change: Callable[[list[Event]], Any]) -> list[Event]:
    events = copy.deepcopy(events)
    change(events)
    return events


def moment(events: list[Event], kind: str, step: int) -> Event:
    return next(event for event in events if event["event"] == kind and event["step"] == step)


def benchmark(eager: bool, rates: list[float], **config: Any) -> Event:
    runs = [{"seconds": 512 / rate, "output_tokens": 512, "tokens_per_second": rate} for rate in rates]
    device = {"kind": "cuda", "name": "a GPU", "count": 1, "driver": "1", "cuda": "12.9"}
    settings = {"eager": eager, "seqs": 16, "output_len": 32, "input_len": 128, "device": "cuda", "dtype": "bfloat16"}
    median = sorted(rates)[len(rates) // 2]
    facts = {"init_seconds": 1.0, "runs": runs, "median_tokens_per_second": median, "kv_blocks": 100}
    return copy.deepcopy({"event": "benchmark", **RUN_FACTS, "device": device, "config": settings | config, **facts})


def cached_forward(**changes: Any) -> Event:
    event = {
        "event": "cached_forward",
        **RUN_FACTS,
        "config": {"prompt_len": 64, "steps": 8, "repeats": 3},
        "positions_without_cache": 540,
        "positions_with_cache": 71,
        "max_abs_logit_error": 1e-5,
        "relative_l2_logit_error": 1e-6,
        "same_top1_steps": 8,
    }
    return copy.deepcopy(event | changes)
