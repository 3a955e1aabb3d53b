"""Fifty random prompts of 1 to 700 tokens: the engine's greedy tokens are those of `transformers.generate`.

Eight at a time, long prompts in chunks, once without and once with prefix hits, and once in a pool so small that
sequences are preempted and computed again. Each circumstance is shown to have happened.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from nanoengine import LLM, SamplingParams
from nanoengine.engine.sequence import Sequence

Make = Callable[..., LLM]
OPTIONS: dict[str, Any] = {"max_model_len": 1024, "max_num_batched_tokens": 256, "max_num_seqs": 8}
OUTPUTS = 32


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(50)
    lengths = [1, 700, *(rng.randint(1, 700) for _ in range(48))]
    return [[rng.randrange(3, 259) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def expected(tiny_model: Path, prompts: list[list[int]]) -> list[list[int]]:
    reference = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        options = {"max_new_tokens": OUTPUTS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        out = reference.generate(ids, attention_mask=torch.ones_like(ids), **options)
        answers.append(out[0, len(prompt) :].tolist())
    return answers


class Seen:
    """What the scheduler did: preemptions, chunks of prompts, and tokens that came from the prefix cache."""

    def __init__(self, engine: LLM) -> None:
        self.preempted = self.chunks = self.reused = 0
        self.scheduler = engine.scheduler
        self.preempt, self.allocate = self.scheduler.preempt, self.scheduler.block_manager.allocate
        self.select = self.scheduler.select_prefill
        self.scheduler.preempt = self.note_preempt  # type: ignore[method-assign]
        self.scheduler.select_prefill = self.note_prefill  # type: ignore[method-assign]
        self.scheduler.block_manager.allocate = self.note_allocate  # type: ignore[method-assign]

    def note_preempt(self, seq: Sequence) -> None:
        self.preempted += 1
        self.preempt(seq)

    def note_prefill(self) -> list[Sequence]:
        seqs = self.select()
        self.chunks += sum(seq.num_cached_tokens + seq.num_scheduled_tokens < seq.num_tokens for seq in seqs)
        return seqs

    def note_allocate(self, seq: Sequence, cached: int) -> None:
        self.reused += cached * seq.block_size
        self.allocate(seq, cached)


def answers(engine: LLM, prompts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=OUTPUTS, ignore_eos=True)
    return [output["token_ids"] for output in engine.generate(prompts, params, use_tqdm=False)]


def test_without_and_with_prefix_hits(make_engine: Make, prompts: list[list[int]], expected: list[list[int]]) -> None:
    engine = make_engine(**OPTIONS, num_kvcache_blocks=2000)
    seen = Seen(engine)
    assert answers(engine, prompts) == expected
    assert (seen.reused, seen.preempted) == (0, 0)
    assert seen.chunks > 20
    assert answers(engine, prompts) == expected
    assert seen.reused > 10_000


def test_with_forced_preemption(make_engine: Make, prompts: list[list[int]], expected: list[list[int]]) -> None:
    options = OPTIONS | {"kvcache_block_size": 4, "num_kvcache_blocks": 185}  # 740 tokens; the longest request is 732
    engine = make_engine(**options)
    seen = Seen(engine)
    assert answers(engine, prompts) == expected
    assert seen.preempted >= 3
    assert len(engine.scheduler.block_manager.free_block_ids) == 185
