"""Request bodies: read within limits, decoded into typed structs, refused with 400 before the engine hears of them.

Unknown fields are ignored, as other servers do. Known fields whose value would change the output in a way this
server does not implement are refused by name: silence there would be a wrong answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from nanolab.serving.http_errors import ApiError

__all__ = [
    "CancelBody",
    "ChatBody",
    "CompletionBody",
    "GenerateBody",
    "OpenAiBody",
    "StreamOptions",
    "TokenizeBody",
    "content_text",
    "decode_body",
    "read_body",
    "refuse_unsupported",
]

T = TypeVar("T")


class GenerateBody(msgspec.Struct, kw_only=True, rename={"request_class": "class"}):
    """Native: text or token ids in, one JSON line an event out."""

    prompt: str | None = None
    prompt_token_ids: list[int] | None = None
    request_id: str | None = None
    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: list[int] = []
    request_class: str | None = None
    text: bool | None = None  # put text into token lines; default: when the prompt was text


class CancelBody(msgspec.Struct, kw_only=True):
    request_id: str


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAiBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens


class CompletionBody(OpenAiBody, kw_only=True):
    prompt: str | list[Any]


class TextPart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None


class Message(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[TextPart] | None = None


class ChatBody(OpenAiBody, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


# Field -> values that leave the output as it is. Any other value asks for something that is not implemented here.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "prompt_embeds": (),
    "truncate_prompt_tokens": (),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "chat_template": (),
    "documents": ([],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "modalities": (["text"],),
    "audio": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}


async def read_body(request: Request, limit: int, timeout_s: float) -> bytes:
    """The whole body, or 413 over `limit` bytes, 408 when it does not arrive in time."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise ApiError(413, f"the body has {declared} bytes; the limit is {limit}")
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise ApiError(413, f"the body has more than {limit} bytes, which is the limit")
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {timeout_s:g} s") from error
    except ClientDisconnect as error:
        raise ApiError(400, "the client went away before its body was complete") from error
    return bytes(body)


def decode_body(body: bytes, kind: type[T]) -> tuple[T, dict[str, Any]]:
    """The typed body and the raw object it came from."""
    try:
        raw = msgspec.json.decode(body)
        if not isinstance(raw, dict):
            raise ApiError(400, f"the body must be a JSON object, not {type(raw).__name__}")
        return msgspec.convert(raw, kind), raw
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise ApiError(400, str(error), param=path.rstrip("`") or _missing_field(message)) from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise ApiError(400, "the body is nested too deeply") from error


def _missing_field(message: str) -> str | None:
    return message.split("`")[1] if "missing required field" in message else None


def refuse_unsupported(raw: dict[str, Any]) -> None:
    for name, neutral in NEUTRAL.items():
        value = raw.get(name)
        if value is not None and not any(_same(value, allowed) for allowed in neutral):
            shown = repr(value)[:60]
            raise ApiError(400, f"{name}={shown} is not supported by this server; leave it out", param=name)


def _same(value: Any, allowed: Any) -> bool:
    """Equal, without taking True for 1."""
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)


ROLES = ("system", "developer", "user", "assistant")


def content_text(message: Message) -> dict[str, str]:
    """One chat message with its text parts joined, in the form that chat templates take."""
    if message.role not in ROLES:
        raise ApiError(400, f"role {message.role!r} is not one of {', '.join(ROLES)}", param="messages")
    role = "system" if message.role == "developer" else message.role
    if message.content is None:
        raise ApiError(400, f"a message of role {message.role!r} has no content", param="messages")
    if isinstance(message.content, str):
        return {"role": role, "content": message.content}
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise ApiError(400, f"content part of type {part.type!r} is not supported; send text", param="messages")
    return {"role": role, "content": "".join(part.text or "" for part in message.content)}
