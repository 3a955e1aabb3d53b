"""Making traces: the lab's mixed workload, Poisson and bursty arrivals. Same options, same bytes, on any machine.

Only `Random.random()` is used, whose sequence Python guarantees for a seed. Token ids lie in the first `vocab_size`
ids (default 256: the bytes), which are legal for the teaching model and for Qwen3 alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from nanolab.errors import LabError
from nanolab.load.trace import TraceRequest, number_prefix_blocks

__all__ = ["ARRIVALS", "TraceOptions", "generate_trace"]

ARRIVALS = ("fixed", "poisson", "bursty")


@dataclass(frozen=True)
class TraceOptions:
    requests: int = 12
    prompt_tokens: int = 32
    long_prompt_tokens: int = 768
    long_every: int = 4  # every n-th request is long; 0: none is
    max_tokens: int = 64
    interval_ms: float = 40.0  # fixed: the gap; poisson and bursty: the mean gap
    seed: int = 17
    arrivals: str = "fixed"
    burst_size: int = 4  # bursty: requests that arrive together
    vocab_size: int = 256

    def __post_init__(self) -> None:
        for name in ("requests", "prompt_tokens", "long_prompt_tokens", "max_tokens", "burst_size", "vocab_size"):
            if getattr(self, name) < 1:
                raise LabError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1")
        if self.long_every < 0 or not 0 <= self.interval_ms < 1e9:
            raise LabError(f"--long-every {self.long_every} and --interval-ms {self.interval_ms} must be 0 or more")
        if self.arrivals not in ARRIVALS:
            raise LabError(f"--arrivals is {self.arrivals!r}; choose one of {', '.join(ARRIVALS)}")


def generate_trace(options: TraceOptions) -> list[TraceRequest]:
    tokens, gaps = Random(options.seed), Random(f"{options.seed}/arrivals")
    is_long = [bool(options.long_every) and (index + 1) % options.long_every == 0 for index in range(options.requests)]
    lengths = [options.long_prompt_tokens if long else options.prompt_tokens for long in is_long]
    prompts = [[int(tokens.random() * options.vocab_size) for _ in range(length)] for length in lengths]
    times = arrival_times(options, gaps)
    hashes = number_prefix_blocks(prompts)
    return [
        TraceRequest(
            request_id=f"r{index:04d}",
            timestamp=times[index],
            input_length=lengths[index],
            output_length=options.max_tokens,
            request_class="long" if is_long[index] else "short",
            hash_ids=hashes[index],
            prompt_token_ids=prompts[index],
        )
        for index in range(options.requests)
    ]


def arrival_times(options: TraceOptions, rng: Random) -> list[float]:
    """Milliseconds after the start; the first request arrives at 0."""
    if options.arrivals == "fixed":
        return [round(index * options.interval_ms, 3) for index in range(options.requests)]
    group = options.burst_size if options.arrivals == "bursty" else 1
    times: list[float] = []
    now = 0.0
    for index in range(options.requests):
        if index and index % group == 0:  # exponential gap between groups; the mean rate stays 1 / interval
            now += -math.log(1.0 - rng.random()) * options.interval_ms * group
        times.append(round(now, 3))
    return times
