"""Decode steps launched ahead: the same tokens, ends and blocks as plain steps, whatever ends a request."""

import random
from pathlib import Path
from typing import Any

import pytest

from nanoengine import LLM, SamplingParams
from nanoengine.engine.run_ahead import LaunchedStep

OPTIONS = {"device": "cpu", "max_model_len": 256, "kvcache_block_size": 16, "max_num_seqs": 8}


def requests(seed: int, stop: tuple[int, ...] = ()) -> list[tuple[list[int], SamplingParams]]:
    """Twelve requests of mixed lengths: greedy, sampled and filtered ones side by side."""
    rng = random.Random(seed)
    made = []
    for number in range(12):
        prompt = [rng.randrange(3, 250) for _ in range(rng.randint(1, 60))]
        params: dict[str, Any] = {"temperature": 0.0} if number % 3 else {"temperature": 0.9, "top_k": 7, "top_p": 0.8}
        made.append((prompt, SamplingParams(max_tokens=rng.randint(1, 40), seed=number, stop_token_ids=stop, **params)))
    return made


def ending_one_by_one() -> list[tuple[list[int], SamplingParams]]:
    rng = random.Random(5)
    prompts = [[rng.randrange(3, 250) for _ in range(9)] for _ in range(4)]
    ends = (9, 3, 7, 5)
    return [(prompt, SamplingParams(max_tokens=n, temperature=0.0)) for prompt, n in zip(prompts, ends, strict=True)]


def run(model: Path, work: list[tuple[list[int], SamplingParams]], **options: Any) -> dict[str, Any]:
    """Outputs, finish reasons and what the pool looks like afterwards, of two batches in a row."""
    llm = LLM(str(model), **(OPTIONS | options))
    ahead: list[int] = []
    launch = llm.model_runner.launch

    def watched(seqs: list[Any], after: LaunchedStep | None) -> LaunchedStep:
        ahead.append(after is not None)
        return launch(seqs, after)

    llm.model_runner.launch = watched  # type: ignore[method-assign]
    reasons: dict[int, str | None] = {}
    take = llm.take_outputs

    def noted(ended: list[Any]) -> list[Any]:
        reasons.update((seq.seq_id, seq.finish_reason) for seq in ended)
        assert all(-1 not in seq.token_ids for seq in ended)
        return take(ended)

    llm.take_outputs = noted  # type: ignore[method-assign]
    try:
        prompts, params = [prompt for prompt, _ in work], [params for _, params in work]
        outputs = [llm.generate(prompts, params, use_tqdm=False) for _ in range(2)]  # the second finds cached blocks
        pool = llm.scheduler.block_manager
        return {
            "tokens": [[answer["token_ids"] for answer in batch] for batch in outputs],
            "reasons": reasons,
            "free": len(pool.free_block_ids),
            "blocks": len(pool.blocks),
            "left": (len(llm.scheduler.running), len(llm.scheduler.waiting), len(llm.requests)),
            "ahead": sum(ahead),
        }
    finally:
        llm.exit()


def differences(plain: dict[str, Any], ahead: dict[str, Any]) -> list[str]:
    return [key for key in ("tokens", "reasons", "free", "left") if plain[key] != ahead[key]]


@pytest.mark.parametrize("blocks", [200, 12], ids=["roomy pool", "pool that preempts"])
@pytest.mark.parametrize("policy", ["prefill_first", "balanced"])
def test_same_tokens_ends_and_blocks(tiny_model: Path, blocks: int, policy: str) -> None:
    work = requests(3)
    options = {"num_kvcache_blocks": blocks, "scheduling_policy": policy}
    plain = run(tiny_model, work, run_ahead=False, **options)
    ahead = run(tiny_model, work, run_ahead=True, **options)
    assert differences(plain, ahead) == []
    assert plain["ahead"] == 0
    assert ahead["free"] == ahead["blocks"]
    if blocks == 200:
        assert ahead["ahead"] > 20


def test_a_stop_token_ends_its_request_and_nothing_else(tiny_model: Path) -> None:
    """Stop at tokens that really come, so that sequences end while their next step is already under way."""
    unstopped = run(tiny_model, requests(4), run_ahead=False, num_kvcache_blocks=200)
    stop = tuple({tokens[len(tokens) // 2] for tokens in unstopped["tokens"][0] if len(tokens) > 4})
    work = requests(4, stop)
    plain = run(tiny_model, work, run_ahead=False, num_kvcache_blocks=200)
    ahead = run(tiny_model, work, run_ahead=True, num_kvcache_blocks=200)
    assert list(plain["reasons"].values()).count("stop") > 5
    assert differences(plain, ahead) == []
    assert ahead["ahead"] > 5


def test_rows_follow_their_sequences_when_one_ends(tiny_model: Path) -> None:
    """Sequences that end by length leave holes; the others' input ids come from other rows than their own."""
    rng = random.Random(5)
    work = [
        ([rng.randrange(3, 250) for _ in range(9)], SamplingParams(max_tokens=n, temperature=0.0)) for n in (9, 3, 7, 5)
    ]
    plain = run(tiny_model, work, run_ahead=False, num_kvcache_blocks=64)
    ahead = run(tiny_model, work, run_ahead=True, num_kvcache_blocks=64)
    assert differences(plain, ahead) == []


def test_an_engine_that_mixes_rows_up_is_noticed(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: input ids taken from the rows of the new batch are the wrong ones."""
    rng = random.Random(5)
    work = [
        ([rng.randrange(3, 250) for _ in range(9)], SamplingParams(max_tokens=n, temperature=0.0)) for n in (9, 3, 7, 5)
    ]
    plain = run(tiny_model, work, run_ahead=False, num_kvcache_blocks=64)
    monkeypatch.setattr(LaunchedStep, "rows_of", lambda self, seqs: list(range(len(seqs))))
    assert "tokens" in differences(plain, run(tiny_model, work, run_ahead=True, num_kvcache_blocks=64))
