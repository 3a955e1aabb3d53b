"""The formulas. Each is stated once, in FORMULAS, and printed beside the numbers it gives.

Times are milliseconds of one observer. A sample is one request (queue wait, TTFT, TPOT, E2E) or one gap (ITL, chunk
gap). Latencies are taken from complete requests only, those that ended as length, eos or stop; the others are
counted by reason. p99 is not given under 100 samples: it would be the maximum under another name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanolab.report.records import RequestRecord, reasons_of

__all__ = ["FORMULAS", "Slo", "itl_ms", "metrics_of", "round_metrics_of", "summarize", "throughput_of", "tpot_ms"]

FORMULAS = {
    "queue_wait": "admitted - submitted (engine)",
    "ttft": "first token-bearing event - submitted (engine) or sent (client)",
    "ttft_from_planned": "first token-bearing event - planned (client; includes the sender's lateness)",
    "itl": "gap between consecutive tokens; tokens of one chunk arrive together, so their gaps are 0",
    "chunk_gap": "gap between consecutive token-bearing chunks (client)",
    "tpot": "(last - first) / (n - 1), n output tokens, n >= 2",
    "e2e": "terminal event - submitted (engine) or sent (client)",
    "e2e_from_planned": "terminal event - planned (client)",
    "throughput": "output tokens of all complete requests / common window of the run, over all replicas",
    "common window": "first submitted (engine) or sent (client) to the last terminal event, tail included",
    "slo_attainment": "complete requests within every given limit / requests sent",
}

MIN_FOR_P99 = 100


@dataclass(frozen=True)
class Slo:
    """Limits in ms; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def is_set(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None

    def is_met(self, record: RequestRecord) -> bool:
        if not record.is_complete:
            return False
        ttft, tpot = ttft_ms(record), tpot_ms(record)
        within_ttft = self.ttft_ms is None or (ttft is not None and ttft <= self.ttft_ms)
        return within_ttft and (self.tpot_ms is None or tpot is None or tpot <= self.tpot_ms)


def ttft_ms(record: RequestRecord) -> float | None:
    return None if record.first_ns is None else (record.first_ns - record.started_ns) / 1e6


def tpot_ms(record: RequestRecord) -> float | None:
    tokens = record.counted_tokens
    if record.first_ns is None or record.last_ns is None or tokens is None or tokens < 2:
        return None
    return (record.last_ns - record.first_ns) / 1e6 / (tokens - 1)


def chunk_gaps_ms(record: RequestRecord) -> list[float]:
    times = [time for time, _ in record.arrivals]
    return [(after - before) / 1e6 for before, after in itertools.pairwise(times)]


def itl_ms(record: RequestRecord) -> list[float] | None:
    """One gap per token after the first; None when a chunk did not say how many tokens it held."""
    times: list[int] = []
    for time, tokens in record.arrivals:
        if tokens is None:
            return None
        times += [time] * tokens
    return [(after - before) / 1e6 for before, after in itertools.pairwise(times)]


def summarize(values: Iterable[float | None]) -> dict[str, Any]:
    """n, mean and percentiles; {"n": 0} when there is nothing."""
    found = np.array([value for value in values if value is not None], dtype=float)
    if not len(found):
        return {"n": 0}
    p99 = float(np.percentile(found, 99)) if len(found) >= MIN_FOR_P99 else None
    summary = {
        "n": len(found),
        "mean": float(found.mean()),
        "p50": float(np.percentile(found, 50)),
        "p90": float(np.percentile(found, 90)) if len(found) >= 10 else None,
        "p99": p99,
        "min": float(found.min()),
        "max": float(found.max()),
    }
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in summary.items()}


def metrics_of(records: Sequence[RequestRecord], slo: Slo) -> dict[str, Any]:
    """Counts and latencies of one observer's records (all of one class, or all together)."""
    complete = [record for record in records if record.is_complete]
    is_client = bool(records) and records[0].observer == "client"
    gaps = [itl_ms(record) for record in complete]
    result: dict[str, Any] = {
        "requests": len(records),
        "ends": reasons_of(list(records)),
        "output_tokens_complete": sum(record.output_tokens or 0 for record in complete),
        "output_tokens_other": sum(record.output_tokens or 0 for record in records if not record.is_complete),
        "ttft_ms": summarize(ttft_ms(record) for record in complete),
        "itl_ms": summarize(gap for found in gaps if found is not None for gap in found),
        "tpot_ms": summarize(tpot_ms(record) for record in complete),
        "e2e_ms": summarize((r.ended_ns - r.started_ns) / 1e6 for r in complete if r.ended_ns is not None),
    }
    if is_client:
        result |= _client_only(complete)
    else:
        waits = ((r.admitted_ns - r.started_ns) / 1e6 for r in records if r.admitted_ns is not None)
        result["queue_wait_ms"] = summarize(waits)
    if slo.is_set and records:
        result["slo_attainment"] = round(sum(map(slo.is_met, records)) / len(records), 4)
    return result


def _client_only(complete: Sequence[RequestRecord]) -> dict[str, Any]:
    planned = [record for record in complete if record.planned_ns is not None]
    return {
        "ttft_from_planned_ms": summarize(
            (r.first_ns - r.planned_ns) / 1e6 for r in planned if r.first_ns is not None and r.planned_ns is not None
        ),
        "e2e_from_planned_ms": summarize(
            (r.ended_ns - r.planned_ns) / 1e6 for r in planned if r.ended_ns is not None and r.planned_ns is not None
        ),
        "chunk_gap_ms": summarize(gap for record in complete for gap in chunk_gaps_ms(record)),
        "chunks_without_token_count": sum(tokens is None for record in complete for _, tokens in record.arrivals),
    }


def throughput_of(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Complete requests' output over the common window; one run, all replicas."""
    ends = [record.ended_ns for record in records if record.ended_ns is not None]
    tokens = sum(record.output_tokens or 0 for record in records if record.is_complete)
    if not ends:
        return {"window_s": None, "output_tokens": tokens, "tokens_per_s": None, "requests_per_s": None}
    window = (max(ends) - min(record.started_ns for record in records)) / 1e9
    complete = sum(record.is_complete for record in records)
    return {
        "window_s": round(window, 4),
        "output_tokens": tokens,
        "tokens_per_s": round(tokens / window, 2) if window else None,
        "requests_per_s": round(complete / window, 2) if window else None,
    }


def round_metrics_of(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Round mode counts scheduling rounds; a round is not a time."""
    complete = [record for record in records if record.is_complete]
    gaps = (after - before for r in complete for before, after in zip(r.rounds, r.rounds[1:], strict=False))
    return {
        "requests": len(records),
        "ends": reasons_of(list(records)),
        "output_tokens_complete": sum(record.output_tokens or 0 for record in complete),
        "rounds_to_first_token": summarize(
            r.rounds[0] - r.started_round for r in complete if r.rounds and r.started_round is not None
        ),
        "rounds_between_tokens": summarize(gaps),
    }
