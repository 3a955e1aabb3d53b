"""What every route needs: the worker, the tokenizer behind one thread, the limits, and how a request is submitted."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from nanolab.serving.bodies import Message, OpenAiBody, content_text
from nanolab.serving.engine import SamplingSpec
from nanolab.serving.events import Reason
from nanolab.serving.http_errors import ApiError
from nanolab.serving.metrics import Metrics
from nanolab.serving.requests import GenerationRequest
from nanolab.serving.stream import Stream
from nanolab.serving.worker import Worker

__all__ = ["ServerSettings", "Service"]

# The tokenizer's own arguments. A template of the client's would be a program that runs here; the others change what
# comes back. What remains are the variables of the model's template.
RESERVED_TEMPLATE_OPTIONS = {
    "conversation",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
}


@dataclass(frozen=True)
class ServerSettings:
    max_body_bytes: int = 1 << 20
    body_timeout_s: float = 10.0
    send_timeout_s: float = 10.0  # a client that reads nothing for this long is a slow consumer
    max_stop_strings: int = 16


@dataclass
class Service:
    worker: Worker
    tokenizer: Any
    model_id: str
    model_root: str
    metrics: Metrics
    settings: ServerSettings = field(default_factory=ServerSettings)
    facts: dict[str, Any] = field(default_factory=dict)  # what /health reveals: policy, tp, execution, simulated

    def __post_init__(self) -> None:
        # NOTE: one thread, because a long text must not hold up the event loop, and a fast tokenizer
        # must not be entered twice.
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._latest: WeakValueDictionary[str, Stream] = WeakValueDictionary()  # by id: the stream that has it now

    def close(self) -> None:
        self._tokenizing.shutdown(wait=True)

    # ---- text --------------------------------------------------------------------------------------------

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ApiError(400, f"the text is not valid Unicode: {error.reason}", param="prompt") from error
        encode = self._tokenizing.submit(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return list(await asyncio.wrap_future(encode))

    async def encode_chat(self, messages: list[Message], options: dict[str, Any] | None) -> list[int]:
        """Token ids of a conversation, by the model's own chat template."""
        if not messages:
            raise ApiError(400, "messages is empty; send at least one", param="messages")
        if not getattr(self.tokenizer, "chat_template", None):
            raise ApiError(400, "this model has no chat template; use /v1/completions", param="messages")
        turns = [content_text(message) for message in messages]
        reserved = RESERVED_TEMPLATE_OPTIONS & set(options or {})
        if reserved:
            raise ApiError(400, f"chat_template_kwargs may not set {', '.join(sorted(reserved))}")
        render = partial(self.tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
        try:
            text = await asyncio.wrap_future(self._tokenizing.submit(render, turns, **(options or {})))
        except Exception as error:  # a template is a program of the model's author: its errors are the caller's input
            raise ApiError(400, f"the chat template refused these messages: {error}", param="messages") from error
        return await self.encode(str(text), add_special_tokens=False)

    # ---- requests ----------------------------------------------------------------------------------------

    def submit(
        self, request_id: str, prompt: list[int], sampling: SamplingSpec, request_class: str | None = None
    ) -> Stream:
        stream = self.worker.submit(GenerationRequest(request_id, prompt, sampling, request_class))
        self._latest[request_id] = stream
        return stream

    def release(self, stream: Stream, reason: Reason = Reason.CANCELLED, message: str | None = None) -> None:
        """End a request that is still open; nothing happens to one that has ended.

        Its end may be on the way here and its id in use again: that request is another one.
        """
        if stream.finished is None and self._latest.get(stream.request_id) is stream:
            self.worker.cancel(stream.request_id, reason, message)

    def check_model(self, model: str | None) -> None:
        if model is not None and model not in (self.model_id, self.model_root):
            raise ApiError(
                404, f"model {model!r} is not served here; this is {self.model_id!r}", code="model_not_found"
            )

    def sampling(self, body: OpenAiBody, prompt_tokens: int, default_limit: int | None) -> SamplingSpec:
        """OpenAI's defaults: temperature 1; `default_limit` tokens, or None for all that the context allows."""
        room = self.worker.facts.max_model_len - prompt_tokens
        limit = body.token_limit if body.token_limit is not None else default_limit
        return SamplingSpec(
            max_tokens=max(room, 1) if limit is None else limit,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_k=0 if body.top_k in (None, -1) else int(body.top_k or 0),
            top_p=1.0 if body.top_p is None else body.top_p,
            seed=body.seed,
            ignore_eos=bool(body.ignore_eos),
            stop_token_ids=tuple(body.stop_token_ids or ()),
        )

    def stop_strings(self, body: OpenAiBody) -> tuple[str, ...]:
        stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        if len(stops) > self.settings.max_stop_strings or not all(stops):
            raise ApiError(400, f"stop takes up to {self.settings.max_stop_strings} non-empty strings", param="stop")
        return stops


def new_request_id(prefix: str) -> str:
    return f"{prefix}-{uuid4().hex}"
