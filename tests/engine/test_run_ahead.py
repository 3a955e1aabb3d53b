"""Decode steps launched ahead: the same tokens, ends and blocks as plain steps, whatever ends a request."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

from nanoengine import LLM, SamplingParams
from nanoengine.engine import llm_engine
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
    work = ending_one_by_one()
    plain = run(tiny_model, work, run_ahead=False, num_kvcache_blocks=64)
    ahead = run(tiny_model, work, run_ahead=True, num_kvcache_blocks=64)
    assert differences(plain, ahead) == []


def test_an_engine_that_mixes_rows_up_is_noticed(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: input ids taken from the rows of the new batch are the wrong ones."""
    work = ending_one_by_one()
    plain = run(tiny_model, work, run_ahead=False, num_kvcache_blocks=64)
    monkeypatch.setattr(LaunchedStep, "rows_of", lambda self, seqs: list(range(len(seqs))))
    assert "tokens" in differences(plain, run(tiny_model, work, run_ahead=True, num_kvcache_blocks=64))


# ---- interrupted -------------------------------------------------------------------------------------------

MakeEngine = Callable[..., LLM]
ROUNDS = range(1, 9)  # ending_one_by_one() takes a prefill step and eight decode steps


def add(llm: LLM, work: list[tuple[list[int], SamplingParams]]) -> list[int]:
    return [llm.add_request(prompt, params) for prompt, params in work]


def generate(llm: LLM, work: list[tuple[list[int], SamplingParams]]) -> list[list[int]]:
    answers = llm.generate([prompt for prompt, _ in work], [params for _, params in work])
    return [answer["token_ids"] for answer in answers]


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, late: bool = False) -> None:
    """Ctrl-C in the `call`th call of `name`, before it does anything or, `late`, after it has done everything."""
    calls, wanted = 0, getattr(owner, name)

    def interrupted(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        result = wanted(*given, **named) if late or calls != call else None
        if calls == call:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, interrupted)


def assert_between_steps(llm: LLM) -> None:
    queued = [seq.seq_id for seq in (*llm.scheduler.running, *llm.scheduler.waiting)]
    assert queued == sorted(queued)
    for seq in llm.requests.values():
        assert -1 not in seq.token_ids
        assert seq.num_scheduled_tokens == 0
        assert len(seq.block_table) == -(-seq.num_cached_tokens // seq.block_size)


def assert_idle(llm: LLM) -> None:
    pool = llm.scheduler.block_manager
    assert llm.requests == {}
    assert llm.is_finished()
    assert len(pool.free_block_ids) == len(pool.blocks)
    assert all(block.ref_count == 0 for block in pool.blocks)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_closed_steps_leave_a_plain_step_boundary(make_engine: MakeEngine, rounds: int) -> None:
    work = ending_one_by_one()
    llm, expected = make_engine(), generate(make_engine(run_ahead=False), work)
    ids = add(llm, work)
    steps, outputs = llm.steps(), {}
    for _ in range(rounds):
        outputs |= next(steps)[0]
    del steps  # whoever leaves a loop over it early closes it
    assert_between_steps(llm)
    for finished, _ in llm.steps():  # what ended while closing is not lost: the next step hands it out
        outputs |= finished
    assert [outputs[request_id] for request_id in ids] == expected
    assert_idle(llm)


def test_generate_after_closed_steps(make_engine: MakeEngine) -> None:
    llm, work = make_engine(), requests(6)
    expected = generate(make_engine(), work)
    add(llm, ending_one_by_one())
    for _ in range(6):
        next(llm.steps())  # each of these is closed at once
    assert generate(llm, work) == expected
    assert_idle(llm)


@pytest.mark.parametrize("call", ROUNDS)
@pytest.mark.parametrize(
    ("name", "late"), [("launch", False), ("launch", True), ("read", False), ("postprocess", False)]
)
def test_steps_go_on_after_an_interruption(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, name: str, late: bool, call: int
) -> None:
    """Before a step is launched, when it is under way, while its tokens are awaited, before it is accounted for."""
    work = ending_one_by_one()
    llm, expected = make_engine(kvcache_block_size=1, num_kvcache_blocks=256), generate(make_engine(), work)
    ids, outputs = add(llm, work), dict(llm.step()[0])
    owners = {"launch": llm.model_runner, "read": LaunchedStep, "postprocess": llm.scheduler}
    interrupt(monkeypatch, owners[name], name, call, late)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 -- what came before the interruption counts
        for finished, _ in llm.steps():
            outputs |= finished
    assert_between_steps(llm)
    for finished, _ in llm.steps():
        outputs |= finished
    assert [outputs[request_id] for request_id in ids] == expected
    assert_idle(llm)


@pytest.mark.parametrize("run_ahead", [True, False])
@pytest.mark.parametrize("name", ["run", "launch", "read", "update", "decode"])
def test_an_interrupted_generate_leaves_nothing_behind(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, name: str, run_ahead: bool
) -> None:
    """In a prefill step, in a decode step, in the bar that counts them, and in the detokenizer."""
    llm, work = make_engine(run_ahead=run_ahead), ending_one_by_one()
    expected = generate(make_engine(), work)

    class Bar(tqdm):  # type: ignore[type-arg]
        pass

    with monkeypatch.context() as patch:
        patch.setattr(llm_engine, "tqdm", Bar)
        runner = llm.model_runner
        owners = {"run": runner, "launch": runner, "read": LaunchedStep, "update": Bar, "decode": llm.tokenizer}
        interrupt(patch, owners[name], name, 1 if name == "run" else 3)
        if run_ahead or name not in ("launch", "read"):
            with pytest.raises(KeyboardInterrupt):
                generate(llm, work)
    assert_idle(llm)
    assert generate(llm, work) == expected
    assert_idle(llm)


def test_an_interrupted_generate_leaves_the_requests_of_others(make_engine: MakeEngine, monkeypatch: Any) -> None:
    llm, work = make_engine(), ending_one_by_one()
    expected = generate(make_engine(), work)
    ids = add(llm, work[:2])
    with monkeypatch.context() as patch:
        interrupt(patch, llm.model_runner, "launch", 2)
        with pytest.raises(KeyboardInterrupt):
            generate(llm, work[2:])
    assert list(llm.requests) == ids
    outputs = {request_id: tokens for finished, _ in llm.steps() for request_id, tokens in finished}
    assert [outputs[request_id] for request_id in ids] == expected[:2]
    assert_idle(llm)
