"""What the engine refuses, what it cannot hold, and that nothing else suffers from either."""

from collections.abc import Callable

import pytest

from nanoengine import LLM, RequestError, SamplingParams

Make = Callable[..., LLM]
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.mark.parametrize(
    ("prompt", "params", "says"),
    [
        ([], GREEDY, "prompt is empty"),
        ("", GREEDY, "prompt is empty"),
        ([5, 512], GREEDY, r"token id 512 is outside the vocabulary of 512 ids \(0 to 511\)"),
        ([-1], GREEDY, "token id -1 is outside the vocabulary"),
        ([1.5], GREEDY, "integer token ids"),
        ([None], GREEDY, "integer token ids"),
        ([7] * 253, GREEDY, r"prompt of 253 tokens \+ max_tokens 4 = 257 exceeds max_model_len 256"),
    ],
)
def test_a_bad_request_is_refused_with_its_numbers(
    make_engine: Make, prompt: list[int], params: SamplingParams, says: str
) -> None:
    engine = make_engine()
    engine.add_request([5, 6, 7], GREEDY)
    with pytest.raises(RequestError, match=says):
        engine.add_request(prompt, params)
    assert [len(seq) for seq in engine.scheduler.waiting] == [3]


def test_a_prompt_larger_than_the_pool_is_refused(make_engine: Make) -> None:
    engine = make_engine(num_kvcache_blocks=2)
    with pytest.raises(RequestError, match=r"33 tokens can never fit the KV pool of 2 blocks x 16 = 32 tokens"):
        engine.add_request([7] * 33, GREEDY)
    assert engine.is_finished()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("max_tokens", 0, "max_tokens is 0"),
        ("temperature", -0.1, "temperature is -0.1"),
        ("temperature", float("nan"), "temperature is nan"),
        ("top_p", 0.0, "top_p is 0.0"),
        ("top_k", -1, "top_k is -1"),
    ],
)
def test_sampling_params_name_the_bad_value(field: str, value: float, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_generate_refuses_the_whole_call_and_leaves_nothing_queued(make_engine: Make) -> None:
    engine = make_engine()
    with pytest.raises(RequestError):
        engine.generate([[5, 6], []], GREEDY, use_tqdm=False)
    assert engine.is_finished()
    assert not engine.requests


def test_outputs_come_back_in_input_order(make_engine: Make) -> None:
    engine = make_engine()
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (5, 1, 3)]
    outputs = engine.generate([[5, 6, 7], [8], [9, 10]], params, use_tqdm=False)
    assert [len(output["token_ids"]) for output in outputs] == [5, 1, 3]
    assert all(output["text"] == engine.tokenizer.decode(output["token_ids"]) for output in outputs)


def test_a_sequence_alone_in_a_full_pool_ends_and_the_others_go_on(make_engine: Make) -> None:
    engine = make_engine(num_kvcache_blocks=3, max_model_len=128)
    free = len(engine.scheduler.block_manager.free_block_ids)
    greedy = engine.add_request([7] * 30, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    small = engine.add_request([9, 10, 11], GREEDY)
    hungry = engine.requests[greedy]
    outputs = {}
    for _ in range(200):
        finished, _ = engine.step()
        outputs |= finished
        if engine.is_finished():
            break
    assert engine.is_finished()
    assert hungry.finish_reason == "kv_exhausted"
    assert len(outputs[greedy]) == 3 * 16 - 30 + 1  # the last token is chosen from a full pool and has no KV
    assert len(outputs[small]) == 4
    assert len(engine.scheduler.block_manager.free_block_ids) == free


def test_preemption_recomputes_and_changes_no_token(make_engine: Make) -> None:
    prompts = [[20 + i] * 15 for i in range(4)]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    roomy = make_engine().generate(prompts, params, use_tqdm=False)
    tight_engine = make_engine(num_kvcache_blocks=6)
    preempted = []
    preempt = tight_engine.scheduler.preempt
    tight_engine.scheduler.preempt = lambda seq: (preempted.append(seq.seq_id), preempt(seq))  # type: ignore[method-assign,assignment,func-returns-value]
    assert tight_engine.generate(prompts, params, use_tqdm=False) == roomy
    assert preempted


def test_abort_returns_blocks_and_silences_the_request(make_engine: Make) -> None:
    engine = make_engine()
    blocks = engine.scheduler.block_manager
    ids = [engine.add_request([30 + i] * 20, GREEDY) for i in range(3)]
    engine.step()
    seq = engine.requests[ids[1]]
    assert engine.abort(ids[1])
    assert seq.finish_reason == "cancelled"
    assert not seq.block_table
    assert not engine.abort(ids[1])
    assert not engine.abort(12345)
    outputs = {}
    for _ in range(20):
        outputs |= dict(engine.step()[0])
        if engine.is_finished():
            break
    assert sorted(outputs) == [ids[0], ids[2]]
    assert len(blocks.free_block_ids) == len(blocks.blocks)


def test_every_eos_id_of_generation_config_stops(make_engine: Make) -> None:
    engine = make_engine()
    assert len(engine.config.eos) > 1
    for eos in engine.config.eos:
        seq_id = engine.add_request([5, 6, 7], SamplingParams(temperature=0, max_tokens=9))
        seq = engine.requests[seq_id]
        seqs, is_prefill = engine.scheduler.schedule()
        engine.scheduler.postprocess(seqs, [eos], is_prefill)
        assert seq.finish_reason == "eos"


def test_a_stop_token_stops_even_when_eos_is_ignored(make_engine: Make) -> None:
    engine = make_engine()
    first = engine.generate([[5, 6, 7]], GREEDY, use_tqdm=False)[0]["token_ids"][0]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, stop_token_ids=(first,))
    assert engine.generate([[5, 6, 7]], params, use_tqdm=False)[0]["token_ids"] == [first]


def test_exit_twice_is_harmless(make_engine: Make) -> None:
    engine = make_engine()
    engine.exit()
    engine.exit()
