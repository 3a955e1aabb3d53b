"""Speaking to a server: the lab's NDJSON and OpenAI's server-sent events, read as one stream of arrivals.

A network chunk is not a token. `Arrival.tokens` says how many tokens came with it, or None where the server does
not say; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from nanolab.serving.events import Reason

__all__ = ["APIS", "Arrival", "Call", "Done", "Refused", "stream_native", "stream_openai"]

APIS = ("native", "openai")


@dataclass(frozen=True)
class Call:
    """One request to send; either token ids or text."""

    request_id: str
    prompt: list[int] | str
    max_tokens: int
    request_class: str | None = None
    ignore_eos: bool = True
    temperature: float = 0.0


@dataclass(frozen=True)
class Arrival:
    """Something token-bearing."""

    tokens: int | None
    text: str = ""


@dataclass(frozen=True)
class Done:
    """The server's terminal message."""

    reason: Reason
    message: str | None = None
    output_tokens: int | None = None


class Refused(Exception):
    """The server answered with an error status before any output."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    body = await response.read()
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        message = body[:200].decode("utf-8", errors="replace")
    raise Refused(response.status, str(message))


async def stream_native(http: aiohttp.ClientSession, url: str, call: Call) -> AsyncGenerator[Arrival | Done, None]:
    """POST /generate; arrivals grouped as the network delivered them, then Done."""
    prompt: dict[str, Any] = (
        {"prompt": call.prompt} if isinstance(call.prompt, str) else {"prompt_token_ids": call.prompt}
    )
    body = {
        **prompt,
        "request_id": call.request_id,
        "max_tokens": call.max_tokens,
        "ignore_eos": call.ignore_eos,
        "temperature": call.temperature,
        "class": call.request_class,
    }
    async with http.post(f"{url}/generate", data=msgspec.json.encode(body)) as response:
        await _check_status(response)
        rest = b""
        async for data in response.content.iter_any():
            *lines, rest = (rest + data).split(b"\n")
            events = [msgspec.json.decode(line) for line in lines if line]
            tokens = [event for event in events if event["event"] == "token"]
            if tokens:
                yield Arrival(len(tokens), "".join(event.get("text", "") for event in tokens))
            for event in events:
                if event["event"] == "finished":
                    yield Done(Reason(event["reason"]), event.get("message"), event["output_tokens"])


FINISH_REASON = {"length": Reason.LENGTH, "stop": Reason.STOP, "abort": Reason.CANCELLED}


async def stream_openai(
    http: aiohttp.ClientSession, url: str, call: Call, model: str
) -> AsyncGenerator[Arrival | Done, None]:
    """POST /v1/completions with streaming; token counts from the usage of each chunk, where the server gives it."""
    body = {
        "model": model,
        "prompt": call.prompt,
        "max_tokens": call.max_tokens,
        "temperature": call.temperature,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": call.ignore_eos,
    }
    counted, reason, failure = 0, None, None
    total: int | None = None
    async with http.post(f"{url}/v1/completions", json=body) as response:
        await _check_status(response)
        async for message in _sse(response):
            if "error" in message:
                failure = str(message["error"].get("message", message["error"]))
                continue
            usage = (message.get("usage") or {}).get("completion_tokens")
            total = usage if usage is not None else total
            if not message["choices"]:
                continue
            choice = message["choices"][0]
            reason = FINISH_REASON.get(choice.get("finish_reason") or "", reason)
            tokens = None if usage is None else usage - counted
            counted = counted if usage is None else usage
            if choice.get("text") or tokens:
                yield Arrival(tokens, choice.get("text") or "")
    if failure is not None:
        yield Done(Reason.ERROR, failure, total)
    elif reason is not None:
        yield Done(reason, None, total)


async def _sse(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    rest = b""
    async for data in response.content.iter_any():
        *blocks, rest = (rest + data).split(b"\n\n")
        for block in blocks:
            payload = block.strip().removeprefix(b"data:").strip()
            if payload and payload != b"[DONE]" and not block.startswith(b":"):
                yield msgspec.json.decode(payload)
