"""/v1/completions and /v1/chat/completions: what clients depend on, driven by the openai SDK and by raw bodies."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from nanolab.serving import Reason
from nanolab.serving.events import Finished
from nanolab.serving.simulated import SimulatedEngine, SimulatedHooks, simulated_tokens

from .helpers import Gate, check_lives
from .live import live_server

HELLO = bytes(simulated_tokens(list(b"hello"), 400)).decode()
CHAT = bytes(simulated_tokens(list(b"<user>hi\n<assistant>"), 400)).decode()


def sdk(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_sdk_completion_whole_and_streamed() -> None:
    async def main() -> None:
        async with live_server() as live, sdk(live.url) as client:
            whole = await client.completions.create(model="simulated", prompt="hello", max_tokens=7, temperature=0)
            assert (whole.choices[0].text, whole.choices[0].finish_reason) == (HELLO[:7], "length")
            assert whole.usage is not None
            assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (5, 7, 12)
            stream = await client.completions.create(model="simulated", prompt="hello", max_tokens=7, stream=True)
            pieces = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in pieces) == HELLO[:7]
        assert [chunk.choices[0].finish_reason for chunk in pieces][-1] == "length"

    asyncio.run(main())


def test_sdk_chat_whole_and_streamed_with_usage() -> None:
    async def main() -> None:
        async with live_server() as live, sdk(live.url) as client:
            messages: Any = [
                {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}
            ]
            whole = await client.chat.completions.create(model="simulated", messages=messages, max_completion_tokens=6)
            assert whole.choices[0].message.content == CHAT[:6]
            stream = await client.chat.completions.create(
                model="simulated", messages=messages, max_tokens=6, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[0].choices[0].delta.content
        assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == CHAT[:6]
        assert chunks[-2].choices[0].finish_reason == "length"
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 6

    asyncio.run(main())


def test_sdk_sees_typed_errors() -> None:
    async def main() -> None:
        async with live_server() as live, sdk(live.url) as client:
            with pytest.raises(openai.NotFoundError, match="is not served here"):
                await client.completions.create(model="other", prompt="a")
            with pytest.raises(openai.BadRequestError, match="n=2 is not supported") as caught:
                await client.completions.create(model="simulated", prompt="a", n=2)
            assert caught.value.param == "n"
            assert [model.id async for model in client.models.list()] == ["simulated"]

    asyncio.run(main())


def test_the_first_message_is_the_first_token_and_carries_the_role() -> None:
    """Step by step: the first message has role and text, the second neither role nor delay, then [DONE]."""
    gate = Gate()

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(in_step=gate.hook)) as live:
            body = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": true}'
            async with live.http.post(live.url + "/v1/chat/completions", data=body) as response:
                await asyncio.to_thread(gate.arrived)
                gate.release()
                await asyncio.to_thread(gate.arrived)  # the first token is out, the second is held
                first = (await response.content.readuntil(b"\n\n")).decode()
                gate.open()
                rest = (await response.content.read()).decode()
        assert f'"delta":{{"role":"assistant","content":"{CHAT[0]}"}}' in first
        second, done, end = rest.split("\n\n")
        assert '"role"' not in second
        assert '"finish_reason":"length"' in second
        assert (done, end) == ("data: [DONE]", "")

    asyncio.run(main())


def test_one_chunk_a_step_has_continuous_usage_when_asked() -> None:
    gate = Gate()

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(before_step=gate.hook)) as live:
            body = {
                "prompt": [1, 2, 3],
                "max_tokens": 3,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
            reading = asyncio.create_task(live.sse("/v1/completions", body))
            for count in range(3):
                await asyncio.to_thread(gate.arrived)
                gate.release()
                await live.until(lambda count=count: sum(type(e).__name__ == "Token" for e in live.events) == count + 1)
            gate.open()
            messages = await reading
        assert messages[-1] == "[DONE]"
        usages = [message["usage"]["completion_tokens"] for message in messages[:-1]]
        assert usages == [1, 2, 3, 3]
        assert messages[-2]["choices"] == []

    asyncio.run(main())


def test_stop_string_ends_the_text_before_it_and_the_engine_request_with_it() -> None:
    stop = HELLO[10:13]
    at = HELLO.find(stop)

    async def main() -> None:
        async with live_server() as live:
            body = {"prompt": "hello", "max_tokens": 300, "stop": ["never!", stop]}
            status, whole = await live.post("/v1/completions", body)
            messages = await live.sse("/v1/completions", body | {"stream": True})
            await live.until(lambda: sum(isinstance(event, Finished) for event in live.events) == 2)
        assert status == 200
        assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == (HELLO[:at], "stop")
        assert "".join(message["choices"][0]["text"] for message in messages[:-1]) == HELLO[:at]
        assert messages[-2]["choices"][0]["finish_reason"] == "stop"
        assert whole["usage"]["completion_tokens"] == at + len(stop)
        check_lives(live.events)

    asyncio.run(main())


def test_an_engine_failure_in_mid_stream_is_an_error_line() -> None:
    steps = iter(range(100))

    def fault(engine: SimulatedEngine) -> None:
        if next(steps) == 3:
            raise RuntimeError("injected fault")

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(in_step=fault)) as live:
            messages = await live.sse("/v1/completions", {"prompt": "a", "max_tokens": 50, "stream": True})
            status, answer = await live.post("/v1/completions", {"prompt": "a"})
        assert "injected fault" in messages[-2]["error"]["message"]
        assert messages[-2]["error"]["code"] == "error"
        assert messages[-1] == "[DONE]"
        assert status == 503
        assert "dead" in answer["error"]["message"]

    asyncio.run(main())


def test_an_engine_failure_without_streaming_is_500() -> None:
    def fault(engine: SimulatedEngine) -> None:
        raise RuntimeError("injected fault")

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(in_step=fault)) as live:
            status, answer = await live.post("/v1/completions", {"prompt": "a"})
        assert (status, answer["error"]["code"]) == (500, "error")

    asyncio.run(main())


def test_cancelled_elsewhere_ends_the_stream_with_abort() -> None:
    gate = Gate()

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(after_step=gate.hook)) as live:
            body = {"prompt": "a", "max_tokens": 900, "stream": True, "ignore_eos": True}
            reading = asyncio.create_task(live.sse("/v1/completions", body))
            await asyncio.to_thread(gate.arrived)
            request_id = next(iter(live.worker._open))
            answer = live.worker.cancel(request_id)
            gate.open()
            assert await asyncio.wrap_future(answer) == "cancelled"
            messages = await reading
        assert messages[-2]["choices"][0]["finish_reason"] == "abort"
        end = next(event for event in live.events if isinstance(event, Finished))
        assert end.reason is Reason.CANCELLED

    asyncio.run(main())


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 2},
        {"best_of": 2},
        {"logprobs": 0},
        {"logprobs": 5},
        {"echo": True},
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"logit_bias": {"1": 5}},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"response_format": {"type": "json_object"}},
        {"min_tokens": 3},
        {"skip_special_tokens": False},
        {"include_stop_str_in_output": True},
        {"truncate_prompt_tokens": 1},
        {"chat_template": "{{ messages }}"},
        {"documents": [{"text": "x"}]},
        {"prompt_embeds": "AAAA"},
        {"stream_options": {"include_usage": True}},
        {"stop": [""]},
        {"stop": ["x"] * 17},
        {"top_p": 0},
        {"top_k": -2},
        {"seed": -1},
        {"prompt": ["a", "b"]},
        {"prompt": [[1], [2]]},
        {"prompt": [1.5]},
        {"prompt": [True]},
        {"prompt": []},
        {"prompt": 7},
        {"max_tokens": 0},
    ],
)
def test_what_would_change_the_output_is_refused(extra: dict[str, Any]) -> None:
    async def main() -> None:
        async with live_server() as live:
            status, answer = await live.post("/v1/completions", {"prompt": "a", "max_tokens": 2} | extra)
            assert status == 400, answer
            assert answer["error"]["type"] == "invalid_request_error"
            assert live.events == []

    asyncio.run(main())


def test_neutral_and_unknown_fields_are_accepted() -> None:
    async def main() -> None:
        async with live_server() as live:
            body = {
                "prompt": ["hello"],
                "max_tokens": 3,
                "n": 1,
                "best_of": 1,
                "logprobs": None,
                "echo": False,
                "tools": [],
                "presence_penalty": 0.0,
                "repetition_penalty": 1.0,
                "response_format": {"type": "text"},
                "user": "somebody",
                "a_field_of_next_year": {"x": 1},
                "top_k": -1,
                "skip_special_tokens": True,
                "include_stop_str_in_output": False,
            }
            status, answer = await live.post("/v1/completions", body)
            assert (status, answer["choices"][0]["text"]) == (200, HELLO[:3])
            status, answer = await live.post("/v1/completions", {"prompt": [[1, 2]], "max_tokens": 1})
            assert (status, answer["usage"]["prompt_tokens"]) == (200, 2)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "messages is empty"),
        ([{"role": "robot", "content": "x"}], "role 'robot'"),
        ([{"role": "user"}], "no content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "'image_url'"),
        ([{"role": "user", "content": "\ud800"}], "not valid"),
        ("hi", "Expected `array`"),
    ],
)
def test_chat_messages_that_cannot_be_read(messages: Any, says: str) -> None:
    async def main() -> None:
        import json

        async with live_server() as live:
            body = json.dumps({"messages": messages}).encode()
            status, answer = await live.post("/v1/chat/completions", body)
            assert status == 400
            assert says in answer["error"]["message"]

    asyncio.run(main())


def test_chat_takes_all_of_the_context_when_no_limit_is_given() -> None:
    async def main() -> None:
        async with live_server() as live:
            body = {"messages": [{"role": "user", "content": "hi"}]}
            answer = (await live.post("/v1/chat/completions", body))[1]
        usage = answer["usage"]
        assert usage["total_tokens"] == 1024
        assert usage["completion_tokens"] == 1024 - usage["prompt_tokens"]

    asyncio.run(main())
