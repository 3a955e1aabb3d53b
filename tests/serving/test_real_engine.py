"""The real engine on the tiny model, behind the real server, on a real socket, driven by the openai SDK."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from nanolab.load.runs import LoadOptions, run_in_process
from nanolab.load.trace import write_trace
from nanolab.serving.engine import CreateEngine, EngineFacts, SamplingSpec
from nanolab.serving.eventlog import read_log
from nanolab.serving.events import Finished, Step, Token
from nanolab.serving.launch import EngineOptions, prepare
from nanolab.serving.profiler import RANGES, StepProfiler
from nanolab.sources import resolve

from .helpers import check_lives
from .live import live_server

OPTIONS: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 4,
    "kvcache_block_size": 16,
    "num_kvcache_blocks": 64,
    "attention_backend": "torch",
    "device": "cpu",
    "enforce_eager": True,
}


@pytest.fixture
def create(tiny_model: Path) -> CreateEngine:
    source = resolve(None)
    return lambda: source.create_engine(tiny_model, **OPTIONS)


def alone(create: CreateEngine, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """What each prompt gives when nothing runs beside it."""
    engine = create()
    outputs = []
    for prompt in prompts:
        sequence = engine.add(prompt, SamplingSpec(max_tokens, ignore_eos=True))
        while engine.has_work():
            engine.step()
        outputs.append(list(sequence.completion_token_ids))
    engine.close()
    return outputs


def test_native_streams_give_the_engines_own_tokens(create: CreateEngine) -> None:
    prompts = [[1 + index] * (5 + 30 * index) for index in range(4)]  # the longest takes two prefill chunks

    async def main() -> list[list[dict[str, Any]]]:
        async with live_server(create) as live:
            calls = (live.generate(prompt_token_ids=prompt, max_tokens=6, ignore_eos=True) for prompt in prompts)
            answers = await asyncio.gather(*calls)
            free = await asyncio.wrap_future(live.worker.call(lambda engine: engine.free_blocks))
            assert free == OPTIONS["num_kvcache_blocks"]
        check_lives(live.events)
        return answers

    answers = asyncio.run(main())
    tokens = [[line["token"] for line in lines if line["event"] == "token"] for lines in answers]
    assert tokens == alone(create, prompts, 6)


def test_the_openai_sdk_streams_completions_and_chat(create: CreateEngine, tiny_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model, local_files_only=True)
    messages: Any = [{"role": "user", "content": "你好, engine"}]
    chat_text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    chat_ids = tokenizer.encode(chat_text, add_special_tokens=False)
    plain_ids = tokenizer.encode("The sky was")
    plain, chat = alone(create, [plain_ids, chat_ids], 8)

    async def main() -> None:
        async with live_server(create) as live, openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="x") as client:
            whole = await client.completions.create(
                model="simulated", prompt="The sky was", max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
            )
            assert whole.choices[0].text == tokenizer.decode(plain, skip_special_tokens=True)
            assert whole.usage is not None
            assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(plain_ids), 8)
            extra = {"ignore_eos": True, "chat_template_kwargs": {"enable_thinking": False}}
            stream = await client.chat.completions.create(
                model="simulated", messages=messages, max_tokens=8, temperature=0, stream=True, extra_body=extra
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == tokenizer.decode(chat, skip_special_tokens=True)
            status, counted = await live.post(
                "/tokenize", {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
            )
            assert (status, counted["tokens"]) == (200, chat_ids)

    asyncio.run(main())


def test_a_seeded_sample_is_the_same_beside_others(create: CreateEngine) -> None:
    async def main() -> None:
        async with live_server(create) as live:
            body = {"prompt_token_ids": [5, 6, 7], "max_tokens": 12, "temperature": 1.0, "seed": 11, "ignore_eos": True}
            first = await live.generate(**body)
            beside = [live.generate(prompt_token_ids=[index] * 9, max_tokens=20, temperature=1.0) for index in range(5)]
            again, *_ = await asyncio.gather(live.generate(**body), *beside)
            picked = [[line["token"] for line in lines if line["event"] == "token"] for lines in (first, again)]
            assert picked[0] == picked[1]

    asyncio.run(main())


def small_load(tmp_path: Path, tiny_model: Path, **changes: Any):  # type: ignore[no-untyped-def]
    from nanolab.load.generate import TraceOptions, generate_trace

    trace = tmp_path / "trace.jsonl"
    options = TraceOptions(requests=4, long_prompt_tokens=150, prompt_tokens=8, max_tokens=5, interval_ms=20)
    write_trace(trace, generate_trace(options))
    engine = EngineOptions(model=tiny_model, policy="balanced", max_model_len=256, batch_tokens=64)
    out = tmp_path / "log.jsonl"
    summary = run_in_process(LoadOptions(trace=trace, out=out, engine=engine, **changes), lambda **facts: None)
    return summary, read_log(out)


def test_load_on_the_real_engine_finds_prefill_chunks_without_tokens(tmp_path: Path, tiny_model: Path) -> None:
    summary, log = small_load(tmp_path, tiny_model)
    assert summary.ends == {"length": 4}
    assert (log.header.simulated, log.header.evidence) == (False, "cpu-engine")
    assert (log.header.config["policy"], log.header.config["execution"]) == ("balanced", "eager")
    assert (log.header.engine or {})["kind"] in ("bundled", "working-copy")
    assert (log.header.model or {})["synthetic"] is True
    check_lives([event for event in log.events if event.observer == "engine"])
    chunks = [
        event
        for event in log.events
        if isinstance(event, Step) and any(row[0] == "r0003" and row[1] > row[2] + row[3] for row in event.batch)
    ]
    assert [event.batch[0][2:4] for event in chunks] == [(0, 64), (64, 64)]
    at = {event.step for event in log.events if isinstance(event, Token) and event.request_id == "r0003"}
    assert not at & {event.step for event in chunks}


@pytest.mark.parametrize(
    ("device", "enforce_eager", "execution"),
    [
        ("cuda", False, "graph"),
        ("cuda", True, "eager"),  # asked for, or the memory ran out before all graphs were captured
        ("cpu", False, "eager"),
    ],
)
def test_the_execution_a_log_names_is_the_live_engines(
    create: CreateEngine, monkeypatch: pytest.MonkeyPatch, device: str, enforce_eager: bool, execution: str
) -> None:
    engine: Any = create()
    config = vars_of(engine.engine.config, device, enforce_eager)
    monkeypatch.setattr(engine.engine, "config", SimpleNamespace(**config))
    facts = EngineFacts.of(engine)
    asked_for_graphs = prepare(EngineOptions(simulated=True, eager=False))
    assert asked_for_graphs.revealed(facts)["execution"] == facts.execution == execution
    engine.close()


def vars_of(config: Any, device: str, enforce_eager: bool) -> dict[str, Any]:
    names = ("hf_config", "max_model_len", "max_num_seqs", "kvcache_block_size")
    return {name: getattr(config, name) for name in names} | {"device": device, "enforce_eager": enforce_eager}


def test_round_mode_on_the_real_engine_repeats_exactly(tmp_path: Path, tiny_model: Path) -> None:
    shapes = []
    for _ in range(2):
        _, log = small_load(tmp_path, tiny_model, mode="round")
        shapes.append([(event.request_id, event.round, getattr(event, "token", None)) for event in log.events])
        assert sum(isinstance(event, Finished) for event in log.events) == 6
    assert shapes[0] == shapes[1]


def test_step_profiler_names_its_ranges_and_takes_them_off(create: CreateEngine, tmp_path: Path) -> None:
    engine = create()
    profiler = StepProfiler(tmp_path / "profile", steps=3)
    engine.add([1, 2, 3], SamplingSpec(6, ignore_eos=True))
    profiler.start(engine)
    while engine.has_work():
        engine.step()
    profiler.stop(engine)
    live: Any = engine
    assert not {"step"} & set(vars(live.engine))
    assert not set(RANGES) & set(vars(live.engine.model_runner))
    engine.close()
    trace = json.loads((tmp_path / "profile" / "trace.json").read_text())
    named = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    assert {name: named.count(name) for name in RANGES} == {
        "step": 3,
        "prepare_prefill": 1,
        "prepare_decode": 2,
        "run_model": 3,
    }
    operators = (tmp_path / "profile" / "operators.txt").read_text()
    assert "rank 0 only" in operators
    assert "run_model" in operators


def test_a_profiled_load_is_marked(tmp_path: Path, tiny_model: Path) -> None:
    _, log = small_load(tmp_path, tiny_model, profile_dir=tmp_path / "profile", profile_steps=4)
    assert log.header.profile
    assert (tmp_path / "profile" / "trace.json").is_file()
