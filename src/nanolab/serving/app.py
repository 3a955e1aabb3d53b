"""The Starlette application: routes and error shapes around one `Service`."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from nanolab.serving import native, openai_api
from nanolab.serving.http_errors import ApiError, on_api_error, on_crash, on_http_exception, on_refused
from nanolab.serving.requests import DuplicateRequest, InvalidRequest, NotServing, QueueFull
from nanolab.serving.service import Service

__all__ = ["create_app"]


def create_app(service: Service) -> Starlette:
    refusals = (InvalidRequest, DuplicateRequest, QueueFull, NotServing)
    app = Starlette(
        routes=[*native.routes, *openai_api.routes],
        exception_handlers={
            ApiError: on_api_error,
            HTTPException: on_http_exception,
            Exception: on_crash,
            **dict.fromkeys(refusals, on_refused),
        },
    )
    app.state.service = service
    return app
