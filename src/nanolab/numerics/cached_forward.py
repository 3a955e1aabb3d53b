"""Generation with Transformers twice along one trajectory: recomputing everything each step, and with a KV cache.

Step 0 sees the prompt; step i sees i more tokens. Without a cache each step computes every known position, with one
only the newest. The tokens are those that the uncached path ranks first; both paths are given the same ones.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from .compare import errors
from .forced import Float32


@dataclass
class Generation:
    """One way through the trajectory: a row of logits and the number of input positions for each step."""

    logits: list[Float32]
    tokens: list[int]
    input_positions: list[int]
    prefill_seconds: float
    decode_seconds: float  # all steps after the first


def generate(model: Any, prompt: list[int], steps: int, *, cached: bool, given: list[int] | None = None) -> Generation:
    """Run `steps` forward passes; `given` are the tokens to continue with, else each step's top-1."""
    import torch

    done = Generation([], [], [], 0.0, 0.0)
    known, cache, first_unseen = list(prompt), None, 0
    with torch.inference_mode():
        for step in range(steps):
            ids = torch.tensor([known[first_unseen:]], device=model.device)
            positions = torch.arange(first_unseen, len(known), device=model.device)[None]
            options = {"use_cache": True, "past_key_values": cache} if cached else {"use_cache": False}
            started = now(model)
            out = model(input_ids=ids, position_ids=positions, logits_to_keep=1, **options)
            seconds = now(model) - started
            if step == 0:
                done.prefill_seconds = seconds
            else:
                done.decode_seconds += seconds
            if cached:
                cache, first_unseen = out.past_key_values, len(known)
            done.input_positions.append(ids.shape[1])
            done.logits.append(out.logits[0, -1].float().cpu().numpy())
            done.tokens.append(given[step] if given else int(done.logits[-1].argmax()))
            known.append(done.tokens[-1])
    return done


def now(model: Any) -> float:
    """Host time after everything queued on the model's device has finished."""
    import torch

    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def compare_generations(without: Generation, with_cache: Generation) -> dict[str, Any]:
    """Counts and errors; the relative error is over all steps together."""
    left, right = np.stack(with_cache.logits), np.stack(without.logits)
    max_abs, relative = errors(left, right)
    return {
        "positions_without_cache": sum(without.input_positions),
        "positions_with_cache": sum(with_cache.input_positions),
        "input_positions_without_cache": without.input_positions,
        "input_positions_with_cache": with_cache.input_positions,
        "max_abs_logit_error": max_abs,
        "relative_l2_logit_error": relative,
        "same_top1_steps": int((left.argmax(-1) == right.argmax(-1)).sum()),
    }


def times(runs: list[Generation]) -> dict[str, Any]:
    """Prefill and decode apart: every run, and the median."""
    seconds = {"prefill": [run.prefill_seconds for run in runs], "decode": [run.decode_seconds for run in runs]}
    return {
        "prefill_seconds": seconds["prefill"],
        "decode_seconds": seconds["decode"],
        "median_prefill_seconds": statistics.median(seconds["prefill"]),
        "median_decode_seconds": statistics.median(seconds["decode"]),
    }
