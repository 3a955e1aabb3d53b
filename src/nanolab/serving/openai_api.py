"""/v1/completions and /v1/chat/completions, streaming and not, as the clients of that API expect them.

Three habits that clients depend on: the role comes with the first token, never earlier (a chunk with choices is
counted as the first token); finish_reason is on the last token's chunk; the usage chunk has empty choices. An error
after the first byte is a `data: {"error": ...}` line.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nanolab.serving.bodies import ChatBody, CompletionBody, OpenAiBody, decode_body, read_body, refuse_unsupported
from nanolab.serving.events import Event, Finished, Reason, Token
from nanolab.serving.http_errors import ApiError, error_body
from nanolab.serving.native import event_response, json_response
from nanolab.serving.responses import ClientGone, until_disconnect
from nanolab.serving.service import Service, new_request_id
from nanolab.serving.stream import Stream
from nanolab.serving.text import TextOutput

__all__ = ["routes"]

B = TypeVar("B", bound=OpenAiBody)
_encoder = msgspec.json.Encoder()
DEFAULT_COMPLETION_TOKENS = 16

FINISH_REASON = {
    Reason.LENGTH: "length",
    Reason.KV_EXHAUSTED: "length",
    Reason.EOS: "stop",
    Reason.STOP: "stop",
    Reason.CANCELLED: "abort",
}


@dataclass
class Answer:
    """One request on its way to becoming an API answer, whole or in chunks."""

    service: Service
    stream: Stream
    text: TextOutput
    prompt_tokens: int
    is_chat: bool
    request_id: str
    include_usage: bool = False
    continuous_usage: bool = False
    completion_tokens: int = 0
    created: int = field(default_factory=lambda: int(time.time()))

    def absorb(self, events: list[Event]) -> tuple[str, bool, Finished | None]:
        """(new text, whether a token came, the end if there is one). A stop string ends the request here."""
        tokens = [event.token for event in events if isinstance(event, Token)]
        end = next((event for event in events if isinstance(event, Finished)), None)
        piece = ""
        for token in tokens:
            if self.text.stopped:
                break
            piece += self.text.feed([token])
            self.completion_tokens += 1
        if end is not None:
            piece += self.text.finish()
        if self.text.stopped:
            self.service.release(self.stream, Reason.STOP, "a stop string was generated")
        return piece, bool(tokens), end

    def reason_of(self, end: Finished | None) -> str | None:
        if self.text.stopped:
            return "stop"
        return FINISH_REASON.get(end.reason) if end is not None else None

    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def envelope(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {
            "id": self.request_id,
            "object": f"{kind}.chunk" if chunk and self.is_chat else kind,
            "created": self.created,
            "model": self.service.model_id,
            "choices": choices,
        }

    def chunk(self, piece: str, reason: str | None, *, first: bool) -> bytes:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if self.is_chat:
            choice["delta"] = {"role": "assistant", "content": piece} if first else {"content": piece}
        else:
            choice["text"] = piece
        message = self.envelope([choice], chunk=True)
        if self.include_usage or self.continuous_usage:
            message["usage"] = self.usage() if self.continuous_usage else None
        return _data(message)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events: one for whatever arrived since the last, then usage if asked for, then [DONE]."""
        first = True
        while events := await self.stream.take():
            piece, has_token, end = self.absorb(events)
            reason = self.reason_of(end)
            if has_token or reason is not None:
                yield self.chunk(piece, reason, first=first)
                first = False
            if reason is not None:
                break
            if end is not None:
                yield _data(error_body(503 if end.reason is Reason.SHUTDOWN else 500, _failure(end), code=end.reason))
                break
        if self.include_usage:
            yield _data({**self.envelope([], chunk=True), "usage": self.usage()})
        yield b"data: [DONE]\n\n"

    async def whole(self) -> dict[str, Any]:
        text = ""
        while events := await self.stream.take():
            piece, _, end = self.absorb(events)
            text += piece
            reason = self.reason_of(end)
            if reason is not None:
                return {**self.envelope([self._choice(text, reason)], chunk=False), "usage": self.usage()}
            if end is not None:
                raise ApiError(503 if end.reason is Reason.SHUTDOWN else 500, _failure(end), code=end.reason)
        raise ApiError(500, "the request ended without a reason")

    def _choice(self, text: str, reason: str) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        return choice | ({"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text})


def _data(message: dict[str, Any]) -> bytes:
    return b"data: " + _encoder.encode(message) + b"\n\n"


def _failure(end: Finished) -> str:
    return f"the request ended as {end.reason}" + (f": {end.message}" if end.message else "")


async def completions(request: Request) -> Response:
    service, body = await _read(request, CompletionBody)
    prompt = await _completion_prompt(service, body.prompt)
    return await _answer(request, service, body, prompt, is_chat=False)


async def chat_completions(request: Request) -> Response:
    service, body = await _read(request, ChatBody)
    prompt = await service.encode_chat(body.messages, body.chat_template_kwargs)
    return await _answer(request, service, body, prompt, is_chat=True)


async def _read(request: Request, kind: type[B]) -> tuple[Service, B]:
    service: Service = request.app.state.service
    raw_bytes = await read_body(request, service.settings.max_body_bytes, service.settings.body_timeout_s)
    body, raw = decode_body(raw_bytes, kind)
    refuse_unsupported(raw)
    service.check_model(body.model)
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream=true", param="stream_options")
    return service, body


async def _completion_prompt(service: Service, prompt: str | list[Any]) -> list[int]:
    """A string or a list of token ids; a list that holds exactly one of these is taken as that one."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return await service.encode(prompt)
    if any(isinstance(item, str | list) for item in prompt):
        raise ApiError(400, f"{len(prompt)} prompts in one request are not supported; send one", param="prompt")
    if not all(type(item) is int for item in prompt):
        raise ApiError(400, "a prompt is a string or a list of integer token ids", param="prompt")
    return prompt


async def _answer(
    request: Request, service: Service, body: OpenAiBody, prompt: list[int], *, is_chat: bool
) -> Response:
    stops = service.stop_strings(body)
    sampling = service.sampling(body, len(prompt), None if is_chat else DEFAULT_COMPLETION_TOKENS)
    request_id = new_request_id("chatcmpl" if is_chat else "cmpl")
    options = body.stream_options
    answer = Answer(
        service,
        service.submit(request_id, prompt, sampling),
        TextOutput(service.tokenizer, stops),
        len(prompt),
        is_chat,
        request_id,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
    )
    if body.stream:
        return event_response(service, answer.stream, answer.chunks(), "text/event-stream")
    try:
        return json_response(await until_disconnect(request.receive, answer.whole()))
    except ClientGone:
        return Response(status_code=499)  # nobody is there to read it
    finally:
        service.release(answer.stream, message="the client disconnected")


routes = [
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
]
