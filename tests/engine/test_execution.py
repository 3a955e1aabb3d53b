"""Numbers: chunks, batches, prefixes and ranks change nothing; sampling is what its options say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from nanoengine import LLM, SamplingParams
from nanoengine.engine.sequence import Sequence
from nanoengine.layers.sampler import keep_most_likely

Make = Callable[..., LLM]


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


PROMPTS = [[11, 12, 13], list(range(100, 180)), [40] * 50, [7]]


def tokens(engine: LLM, params: SamplingParams, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    return [output["token_ids"] for output in engine.generate(prompts, params, use_tqdm=False)]


def test_greedy_tokens_equal_transformers(tiny_model: Path, make_engine: Make) -> None:
    reference = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    expected = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            for _ in range(8):
                ids = torch.cat((ids, reference(ids).logits[:, -1:].argmax(-1)), dim=1)
        expected.append(ids[0, len(prompt) :].tolist())
    assert tokens(make_engine(), greedy(8)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 7, "max_num_seqs": 1},
        {"kvcache_block_size": 5, "num_kvcache_blocks": 200},
        {"scheduling_policy": "balanced", "max_num_batched_tokens": 16},
        {"max_num_seqs": 2},
    ],
)
def test_chunks_pages_and_policies_change_no_token(make_engine: Make, changes: dict[str, Any]) -> None:
    assert tokens(make_engine(**changes), greedy(10)) == tokens(make_engine(), greedy(10))


def test_a_prefix_hit_changes_no_token(make_engine: Make) -> None:
    engine = make_engine()
    prompt = list(range(60, 130))
    first = tokens(engine, greedy(6), [prompt])
    request = engine.add_request(prompt, greedy(6))
    engine.step()
    seq = engine.requests[request]
    assert seq.num_prompt_tokens - 16 <= seq.num_cached_tokens  # only the tail was computed in this step
    while not engine.is_finished():
        engine.step()
    assert [seq.completion_token_ids] == first


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_ranks_give_the_tokens_of_one(make_engine: Make, dtype: str) -> None:
    one = tokens(make_engine(dtype=dtype), greedy(8))
    two = make_engine(dtype=dtype, tensor_parallel_size=2)
    assert tokens(two, greedy(8)) == one
    two.exit()
    assert all(not process.is_alive() for process in two.processes)


def test_a_seed_fixes_the_tokens_whatever_runs_beside(make_engine: Make) -> None:
    seeded = SamplingParams(temperature=0.8, seed=1234, max_tokens=12, ignore_eos=True)
    alone = tokens(make_engine(), seeded, [[11, 12, 13]])[0]
    noise = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    engine = make_engine(max_num_batched_tokens=16)
    together = engine.generate([*PROMPTS[1:], [11, 12, 13]], [noise, noise, noise, seeded], use_tqdm=False)
    assert together[-1]["token_ids"] == alone
    other = SamplingParams(temperature=0.8, seed=1235, max_tokens=12, ignore_eos=True)
    assert tokens(engine, other, [[11, 12, 13]])[0] != alone


def test_sampled_frequencies_follow_the_softmax(make_engine: Make) -> None:
    engine = make_engine(max_num_seqs=64)
    count = 2000
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=1, ignore_eos=True) for i in range(count)]
    seen = np.zeros(512)
    for output in engine.generate([[11, 12, 13]] * count, params, use_tqdm=False):
        seen[output["token_ids"][0]] += 1
    logits = first_logits(engine, [11, 12, 13])
    expected = torch.softmax(logits, -1).numpy() * count
    likely = expected > 20
    deviation = np.abs(seen - expected)[likely] / np.sqrt(expected[likely])
    assert deviation.max() < 5  # five standard deviations of a Poisson count


def first_logits(engine: LLM, prompt: list[int]) -> torch.Tensor:
    seq = Sequence(10**6, prompt, greedy(1), engine.config.kvcache_block_size)
    engine.scheduler.block_manager.allocate(seq, 0)
    seq.num_scheduled_tokens = len(prompt)
    runner = engine.model_runner
    logits = runner.run_model(runner.prepare_prefill([seq])).logits
    engine.scheduler.block_manager.deallocate(seq)
    assert logits is not None
    return logits[0].float()


def test_top_k_one_is_greedy_and_a_small_top_p_is_too(make_engine: Make) -> None:
    engine = make_engine()
    best = tokens(engine, greedy(6), [[11, 12, 13]])
    for params in (
        SamplingParams(temperature=1.5, top_k=1, max_tokens=6, ignore_eos=True),
        SamplingParams(temperature=1.5, top_p=1e-6, max_tokens=6, ignore_eos=True),
    ):
        assert tokens(engine, params, [[11, 12, 13]]) == best


def test_top_k_and_top_p_keep_the_right_sets() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    one = torch.ones(1)

    def kept(top_k: int, top_p: float) -> list[int]:
        return torch.isfinite(keep_most_likely(logits, one, [top_k], [top_p])[0]).nonzero().flatten().tolist()

    assert kept(2, 1.0) == [0, 1]
    assert kept(0, 0.5) == [0]
    assert kept(0, 0.51) == [0, 1]
    assert kept(0, 0.81) == [0, 1, 2]
    assert kept(1, 0.99) == [0]
    assert kept(0, 1.0) == [0, 1, 2, 3]
