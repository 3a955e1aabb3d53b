"""Another client's numbers beside ours for the same run: does the server mean the same by TTFT and TPOT as they do?

The other client measured at its end of the connection, the server's log at the engine, so a small difference is the
network and the HTTP layer. guidellm calls our TPOT "inter token latency"; its own "time per output token" divides the
whole latency by the tokens, first token included, and is another quantity.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nanolab.errors import LabError
from nanolab.report.metrics import summarize, tpot_ms, ttft_ms
from nanolab.report.records import build_records
from nanolab.serving.eventlog import Log

__all__ = ["CLIENTS", "TOLERANCE", "compare_with", "read_client"]

CLIENTS = ("guidellm", "vllm")
TOLERANCE = 0.10


def read_client(path: Path, kind: str) -> dict[str, Any]:
    """{"requests", "ttft_ms", "tpot_ms"} means from `guidellm run --output kind=json` or `vllm bench serve`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if kind == "vllm":
            return {
                "requests": int(document["completed"]),
                "ttft_ms": float(document["mean_ttft_ms"]),
                "tpot_ms": float(document["mean_tpot_ms"]),
            }
        metrics = document["benchmarks"][0]["metrics"]
        first = metrics["time_to_first_token_ms"]["successful"]
        return {
            "requests": int(first["count"]),
            "ttft_ms": float(first["mean"]),
            "tpot_ms": float(metrics["inter_token_latency_ms"]["successful"]["mean"]),
        }
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise LabError(f"{path} is not a {kind} result ({error!r}); check --kind") from error


def compare_with(log: Log, client: dict[str, Any]) -> dict[str, Any]:
    """Means side by side and their relative difference; `agrees` needs equal request counts and both within 10 %."""
    records = [record for record in build_records(log).get("engine", []) if record.is_complete]
    ours = {
        "requests": len(records),
        "ttft_ms": summarize(map(ttft_ms, records)).get("mean"),
        "tpot_ms": summarize(map(tpot_ms, records)).get("mean"),
    }
    if not records:
        raise LabError(f"{log.path} holds no complete request; was it the log of that run?")
    differences = {
        name: round(client[name] / ours[name] - 1, 4) if ours[name] else None for name in ("ttft_ms", "tpot_ms")
    }
    within = [value is not None and abs(value) <= TOLERANCE for value in differences.values()]
    return {
        "report": ours,
        "client": client,
        "relative_difference": differences,
        "tolerance": TOLERANCE,
        "agrees": all(within) and ours["requests"] == client["requests"],
    }
