"""Every refusal as one JSON shape: {"error": {message, type, param, code}}, with the status that clients act on."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from nanolab.serving.requests import DuplicateRequest, InvalidRequest, NotServing, QueueFull, RefusedRequest

__all__ = ["ApiError", "error_body", "error_response", "on_api_error", "on_crash", "on_http_exception", "on_refused"]

RETRY_AFTER_S = 1


class ApiError(Exception):
    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    kind = "rate_limit_error" if status == 429 else kind
    return {"error": {"message": message, "type": kind, "param": param, "code": code or str(status)}}


def error_response(status: int, message: str, param: str | None = None, code: str | None = None) -> Response:
    headers = {"retry-after": str(RETRY_AFTER_S)} if status in (429, 503) else {}
    if status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    content = msgspec.json.encode(error_body(status, message, param, code))
    return Response(content, status, headers, media_type="application/json")


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error.status, error.message, error.param, error.code)


async def on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedRequest)
    status = {InvalidRequest: 400, DuplicateRequest: 409, QueueFull: 429, NotServing: 503}[type(error)]
    return error_response(status, str(error), getattr(error, "param", None))


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, f"{request.method} {request.url.path}: {error.detail}")


async def on_crash(request: Request, error: Exception) -> Response:
    return error_response(500, f"internal error: {type(error).__name__}")
