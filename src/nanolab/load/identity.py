"""What an OpenAI-compatible server reveals about itself, in the terms in which the lab's own server does.

The lab's server says everything in /health. vLLM's /health is empty; its version is at /version, the served name, the
model directory and the context are in /v1/models. Nothing is guessed: a CPU build (version `...+cpu`) cannot have run
elsewhere, so it is `cpu-engine`; any other build leaves the evidence type open. The model directory is described only
where this process sees the same host's files.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from nanolab.errors import LabError
from nanolab.evidence import describe_device
from nanolab.models import describe_model
from nanolab.verdicts import EvidenceType

__all__ = ["ServedModel", "read_served_model", "reveal_vllm"]


@dataclass(frozen=True)
class ServedModel:
    """The first entry of /v1/models."""

    id: str
    root: str | None
    max_model_len: int | None


async def read_served_model(http: aiohttp.ClientSession, url: str) -> ServedModel:
    """LabError when the server has no /v1/models to name its model with."""
    async with http.get(f"{url}/v1/models") as response:
        body = await response.read()
        try:
            card = msgspec.json.decode(body)["data"][0]
            return ServedModel(str(card["id"]), card.get("root"), card.get("max_model_len"))
        except (msgspec.MsgspecError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise LabError(
                f"endpoint {url} names no model in /v1/models (HTTP {response.status}); "
                "is it an OpenAI-compatible server? --api native drives the lab's own"
            ) from error


async def reveal_vllm(http: aiohttp.ClientSession, url: str, model: ServedModel) -> dict[str, Any]:
    """Keys of the lab's /health that vLLM's answers allow to fill; empty for a server without /version."""
    async with http.get(f"{url}/version") as response:
        body = await response.read()
    version: Any = None
    with contextlib.suppress(msgspec.MsgspecError, KeyError, TypeError):
        version = msgspec.json.decode(body)["version"]
    if not isinstance(version, str):
        return {}
    on_cpu, is_here = version.endswith("+cpu"), urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    return {
        "evidence": EvidenceType.CPU_ENGINE.value if on_cpu else None,
        "engine": {"max_model_len": model.max_model_len},
        "runs_on": {
            "engine": {"kind": "vllm", "package": "vllm", "version": version, "commit": None},
            "model": _describe(model.root) if is_here else None,
            "device": describe_device("cpu") if on_cpu and is_here else None,
        },
    }


def _describe(root: str | None) -> dict[str, Any] | None:
    with contextlib.suppress(LabError, OSError):
        return describe_model(Path(root)) if root and Path(root).is_dir() else None
    return None
