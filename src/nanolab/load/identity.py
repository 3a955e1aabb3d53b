"""What an OpenAI-compatible server reveals about itself, in the terms in which the lab's own server does.

The lab's server says everything in /health. vLLM's /health is empty; its version is at /version; the served name, the
model directory and the context are in /v1/models; the device, only with VLLM_SERVER_DEV_MODE=1, in /server_info.
Nothing is guessed: without /server_info the evidence type stays open. The model directory and the device are described
only where this process sees the same host.
"""

from __future__ import annotations

import contextlib
import re
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

EVIDENCE = {"cpu": EvidenceType.CPU_ENGINE.value, "cuda": EvidenceType.GPU.value}


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
    version = await _value(http, f"{url}/version", "version")
    if version is None:
        return {}
    config = await _value(http, f"{url}/server_info", "vllm_config") or ""
    device, ranks, eager = (_setting(config, n) for n in ("device_config", "tensor_parallel_size", "enforce_eager"))
    is_here = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    return {
        "evidence": EVIDENCE.get(device or ""),
        "tensor_parallel_size": None if ranks is None else int(ranks),
        "execution": None if eager is None else "eager" if eager == "True" else "graph",
        "engine": {"max_model_len": model.max_model_len},
        "runs_on": {
            "engine": {"kind": "vllm", "package": "vllm", "version": version, "commit": None},
            "model": _describe(model.root) if is_here else None,
            "device": describe_device(device) if is_here and device in EVIDENCE else None,
        },
    }


async def _value(http: aiohttp.ClientSession, url: str, name: str) -> str | None:
    """A text field of a JSON answer; None where there is no such answer."""
    async with http.get(url) as response:
        body = await response.read()
    with contextlib.suppress(msgspec.MsgspecError, KeyError, TypeError):
        value = msgspec.json.decode(body)[name]
        return value if isinstance(value, str) else None
    return None


def _setting(config: str, name: str) -> str | None:
    """`name=word` in vLLM's own one-line description of its configuration."""
    found = re.search(rf"\b{name}=(\w+)", config)
    return found[1] if found else None


def _describe(root: str | None) -> dict[str, Any] | None:
    with contextlib.suppress(LabError, OSError):
        return describe_model(Path(root)) if root and Path(root).is_dir() else None
    return None
