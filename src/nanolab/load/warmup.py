"""Warm-up requests: prompts that share no prefix with a trace or with each other, left out of every statistic.

They make the first measured request meet an engine that has run before. Two requests cover few shapes: a first
long prefill, or a first large decode batch, can still pay for something new.
"""

from __future__ import annotations

from random import Random

from nanolab.load.trace import TraceRequest

__all__ = ["warmup_requests"]


def warmup_requests(count: int, vocab_size: int, prefix: str = "warmup") -> list[TraceRequest]:
    requests = []
    for index in range(count):
        rng = Random(f"{prefix}-{index}")
        prompt = [int(rng.random() * min(vocab_size, 256)) for _ in range(32)]
        requests.append(
            TraceRequest(
                request_id=f"{prefix}-{index}",
                timestamp=0.0,
                input_length=len(prompt),
                output_length=8,
                prompt_token_ids=prompt,
                request_class="warmup",
            )
        )
    return requests
