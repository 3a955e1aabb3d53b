"""The lab's own routes: /generate (one JSON line an event), /cancel, /health, /metrics, /tokenize, /v1/models."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nanolab.serving.bodies import CancelBody, GenerateBody, TokenizeBody, decode_body, read_body
from nanolab.serving.engine import SamplingSpec
from nanolab.serving.events import Event, Finished, Reason, Submitted, Token
from nanolab.serving.http_errors import ApiError
from nanolab.serving.responses import EventResponse
from nanolab.serving.service import Service, new_request_id
from nanolab.serving.stream import Stream
from nanolab.serving.text import TextOutput
from nanolab.serving.worker import State

__all__ = ["event_response", "json_response", "routes"]

_encoder = msgspec.json.Encoder()


def json_response(content: Any, status: int = 200) -> Response:
    return Response(_encoder.encode(content), status, media_type="application/json")


def event_response(
    service: Service, stream: Stream, chunks: AsyncGenerator[bytes, None], media_type: str
) -> EventResponse:
    """A streaming answer whose request is released however the connection ends."""

    def on_stall() -> None:
        service.release(stream, Reason.SLOW_CONSUMER, f"nothing was read for {service.settings.send_timeout_s:g} s")

    return EventResponse(
        chunks,
        media_type,
        send_timeout_s=service.settings.send_timeout_s,
        on_stall=on_stall,
        on_exit=lambda: service.release(stream, message="the client disconnected"),
    )


async def generate(request: Request) -> Response:
    service: Service = request.app.state.service
    raw = await read_body(request, service.settings.max_body_bytes, service.settings.body_timeout_s)
    body, _ = decode_body(raw, GenerateBody)
    prompt = await _prompt(service, body)
    sampling = SamplingSpec(
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        seed=body.seed,
        ignore_eos=body.ignore_eos,
        stop_token_ids=tuple(body.stop_token_ids),
    )
    request_id = body.request_id if body.request_id is not None else new_request_id("gen")
    stream = service.submit(request_id, prompt, sampling, body.request_class)
    with_text = body.prompt is not None if body.text is None else body.text
    text = TextOutput(service.tokenizer) if with_text else None
    return event_response(service, stream, _event_lines(stream, text), "application/x-ndjson")


async def _prompt(service: Service, body: GenerateBody) -> list[int]:
    if (body.prompt is None) == (body.prompt_token_ids is None):
        raise ApiError(400, "send exactly one of prompt and prompt_token_ids", param="prompt")
    return await service.encode(body.prompt) if body.prompt is not None else list(body.prompt_token_ids or ())


async def _event_lines(stream: Stream, text: TextOutput | None) -> AsyncGenerator[bytes, None]:
    """Whatever has happened since the last send, one line an event; the terminal line is the last."""
    while events := await stream.take():
        yield _encoder.encode_lines([_line(event, text) for event in events])


def _line(event: Event, text: TextOutput | None) -> Any:
    if isinstance(event, Submitted):
        return {"event": "accepted", **_fields(event)}
    if text is not None and isinstance(event, Token):
        return msgspec.structs.replace(event, text=text.feed([event.token]))
    if text is not None and isinstance(event, Finished) and (rest := text.finish()):
        return msgspec.to_builtins(event) | {"text": rest}
    return event


def _fields(event: Submitted) -> dict[str, Any]:
    names = ("request_id", "worker_id", "t_ns", "prompt_tokens", "max_tokens")
    return {name: getattr(event, name) for name in names}


async def cancel(request: Request) -> Response:
    service: Service = request.app.state.service
    raw = await read_body(request, service.settings.max_body_bytes, service.settings.body_timeout_s)
    body, _ = decode_body(raw, CancelBody)
    answer = await asyncio.wrap_future(service.worker.cancel(body.request_id))
    return json_response({"request_id": body.request_id, "result": answer})


async def health(request: Request) -> Response:
    """200 while requests are taken; 503 with the reason when starting, draining or dead."""
    service: Service = request.app.state.service
    worker = service.worker
    queued, active = worker.queue_lengths
    content = {
        "status": "ok" if worker.state is State.SERVING else worker.state.value,
        "reason": worker.failure,
        "worker_id": worker.worker_id,
        "model": service.model_id,
        "queued": queued,
        "active": active,
        **service.facts,
    }
    with contextlib.suppress(Exception):
        content |= {"engine": dataclasses.asdict(worker.facts)}
    return json_response(content, 200 if worker.state is State.SERVING else 503)


async def metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    text = service.metrics.render(*service.worker.queue_lengths, service.worker.kv_usage)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def models(request: Request) -> Response:
    service: Service = request.app.state.service
    model = {
        "id": service.model_id,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "nanolab",
        "root": service.model_root,
        "parent": None,
        "max_model_len": service.worker.facts.max_model_len,
    }
    return json_response({"object": "list", "data": [model]})


async def one_model(request: Request) -> Response:
    service: Service = request.app.state.service
    service.check_model(request.path_params["model"])
    listing = msgspec.json.decode((await models(request)).body)
    return json_response(listing["data"][0])


async def tokenize(request: Request) -> Response:
    service: Service = request.app.state.service
    raw = await read_body(request, service.settings.max_body_bytes, service.settings.body_timeout_s)
    body, _ = decode_body(raw, TokenizeBody)
    service.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "send exactly one of prompt and messages", param="prompt")
    if body.messages is not None:
        tokens = await service.encode_chat(body.messages, body.chat_template_kwargs)
    else:
        tokens = await service.encode(body.prompt or "", body.add_special_tokens)
    return json_response({"count": len(tokens), "max_model_len": service.worker.facts.max_model_len, "tokens": tokens})


routes = [
    Route("/generate", generate, methods=["POST"]),
    Route("/cancel", cancel, methods=["POST"]),
    Route("/health", health, methods=["GET"]),
    Route("/metrics", metrics, methods=["GET"]),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/v1/models", models, methods=["GET"]),
    Route("/v1/models/{model:path}", one_model, methods=["GET"]),
]
