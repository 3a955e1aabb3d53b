"""2,000 malformed bodies, seeded: every answer is a 4xx, and a request running beside them gets exactly its tokens."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from nanolab.serving.simulated import SimulatedHooks, simulated_tokens

from .helpers import WAIT_S, Gate, check_lives
from .live import Live, live_server

CASES = 2000
PATHS = ("/generate", "/v1/completions", "/v1/chat/completions", "/cancel", "/tokenize")
VALID: dict[str, dict[str, Any]] = {
    "/generate": {"prompt": "abc", "max_tokens": 2},
    "/v1/completions": {"prompt": "abc", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2},
    "/cancel": {"request_id": "nobody"},
    "/tokenize": {"prompt": "abc"},
}
REQUIRED = {
    "/generate": "prompt",
    "/v1/completions": "prompt",
    "/v1/chat/completions": "messages",
    "/cancel": "request_id",
    "/tokenize": "prompt",
}
WRONG = [True, 1.5, -1, 2**70, -(2**70), {"a": 1}, [[]], [None], [{"a": [1]}], {"": {"": ""}}]


def malformed(rng: Random) -> tuple[str, bytes]:
    """One body that no server should accept, by one of eight kinds of damage."""
    path = PATHS[int(rng.random() * len(PATHS))]
    kind = int(rng.random() * 8)
    valid = json.dumps(VALID[path]).encode()
    if kind == 0:  # cut off
        return path, valid[: int(rng.random() * (len(valid) - 1))]
    if kind == 1:  # bytes that are no UTF-8, somewhere inside
        at = 1 + int(rng.random() * (len(valid) - 2))
        return path, valid[:at] + bytes([0xC0 + int(rng.random() * 64), 0xFF]) + valid[at:]
    if kind == 2:  # deep
        opener = b'{"a":' if rng.random() < 0.5 else b"["
        return path, opener * (2000 + int(rng.random() * 20000))
    if kind == 3:  # not an object
        values = [b"null", b"1", b'"text"', b"[]", b"true", b"[1,2,3]", b"1e400", b"-0"]
        return path, values[int(rng.random() * len(values))]
    if kind == 4:  # a required field of the wrong type
        body = {**VALID[path], REQUIRED[path]: WRONG[int(rng.random() * len(WRONG))]}
        return path, json.dumps(body).encode()
    if kind == 5:  # a required field missing
        body = {name: value for name, value in VALID[path].items() if name != REQUIRED[path]}
        return path, json.dumps(body).encode()
    if kind == 6:  # numbers that are none, or too large
        number = ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "0x10", "01", "--1", ""][int(rng.random() * 9)]
        return path, f'{{"{REQUIRED[path]}": {number}}}'.encode()
    rest = bytes(int(rng.random() * 256) for _ in range(int(rng.random() * 64)))
    return path, b"{" + rest  # random bytes


def test_malformed_bodies_cost_a_concurrent_request_nothing() -> None:
    """The request beside advances ten steps for every fifty bodies, so the fuzz falls on all of its life."""
    rng = Random(20)
    cases = [malformed(rng) for _ in range(CASES)]
    prompt = list(b"the request beside")
    gate = Gate()

    async def main() -> None:
        async with live_server(hooks=SimulatedHooks(before_step=gate.hook)) as live:
            beside = asyncio.create_task(live.generate(request_id="beside", prompt_token_ids=prompt, max_tokens=500))
            for start in range(0, CASES, 50):
                for _ in range(10):
                    gate.release()
                await asyncio.gather(*(refused(live, *case) for case in cases[start : start + 50]))
            assert not beside.done()
            gate.open()
            lines = await beside
        tokens = [line["token"] for line in lines if line["event"] == "token"]
        assert tokens == simulated_tokens(prompt, 500)
        assert {event.request_id for event in live.events} - {None} == {"beside"}
        check_lives(live.events)

    asyncio.run(main())


async def refused(live: Live, path: str, body: bytes) -> None:
    async with live.http.post(live.url + path, data=body) as response:
        answer = await response.json()
        assert 400 <= response.status < 500, (path, body[:200], response.status)
        assert set(answer) == {"error"}, (path, body[:200])


@pytest.mark.parametrize("path", PATHS)
def test_the_bodies_the_fuzz_starts_from_are_valid(path: str) -> None:
    """If these were refused too, the fuzz would prove nothing."""

    async def main() -> None:
        async with live_server() as live:
            assert (await live.post_raw(path, json.dumps(VALID[path]).encode()))[0] == 200

    asyncio.run(main())


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: abc\r\n\r\n",
        b"POST /generate HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /generate HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET " + b"a" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
def test_malformed_http_is_answered_4xx_or_closed(raw: bytes) -> None:
    async def main() -> None:
        async with live_server() as live:
            host, port = live.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(raw)
            answer = await asyncio.wait_for(reader.readline(), WAIT_S)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
            writer.close()
            assert (await live.get("/health"))[0] == 200
            assert live.events == []

    asyncio.run(main())
