"""Repeats and before/after: distributions over runs, and the same request paired with itself.

Runs with the same configuration and trace are repeats of one group. Two groups that replayed the same trace are
compared request by request, so that a long request is never compared with a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from nanolab.report.metrics import itl_ms, summarize, throughput_of, tpot_ms, ttft_ms
from nanolab.report.records import RequestRecord

if TYPE_CHECKING:
    from nanolab.report.build import Run

__all__ = ["compare_groups", "group_runs"]

# What makes two runs different experiments; the rest (ports, paths, ids) does not.
IDENTITY = (
    "mode",
    "api",
    "policy",
    "execution",
    "tensor_parallel_size",
    "replicas",
    "router",
    "max_active",
    "max_model_len",
    "batch_tokens",
    "batch_seqs",
    "attention_backend",
)
NAMES = (*IDENTITY, "evidence", "trace", "engine")


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Repeats under one label; the label names only what differs between the groups."""
    keyed: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        keyed.setdefault(_identity(run), []).append(run)
    differing = [index for index in range(len(NAMES)) if len({str(key[index]) for key in keyed}) > 1]
    labels: dict[str, list[Run]] = {}
    for key, members in keyed.items():
        label = ", ".join(_part(index, key[index]) for index in differing) or "all runs"
        labels[label] = members
    return labels


def _identity(run: Run) -> tuple[Any, ...]:
    config, header = run.header.config, run.header
    engine = (header.engine or {}).get("tree_sha256") or (header.engine or {}).get("kind")
    return (
        *(str(config.get(name)) for name in IDENTITY),
        str(header.evidence),
        str(header.trace_sha256),
        str(engine),
    )


def _part(index: int, value: str) -> str:
    name = NAMES[index]
    return f"{name}={value[:12] if name in ('trace', 'engine') else value}"


def compare_groups(groups: dict[str, list[Run]]) -> dict[str, Any]:
    """Distribution over the repeats of each group; paired differences between the first and each later one."""
    labels = list(groups)
    return {
        "repeats": {label: _distribution(runs) for label, runs in groups.items()},
        "pairs": [
            {"before": labels[0], "after": other, **_paired(groups[labels[0]], groups[other])} for other in labels[1:]
        ],
    }


def _distribution(runs: Sequence[Run]) -> dict[str, Any]:
    """Each repeat's own number, and their spread; never one average over all requests of all repeats."""
    per_run: dict[str, list[float | None]] = {"tokens_per_s": [], "rejected": []}
    for run in runs:
        records = _records(run)
        per_run["tokens_per_s"].append(throughput_of(records)["tokens_per_s"])
        per_run["rejected"].append(float(sum(record.reason == "rejected" for record in records)))
        for name in ("short", "long"):
            found = [r for r in records if r.is_complete and r.request_class == name]
            if found:
                per_run.setdefault(f"{name}_ttft_ms_p50", []).append(_median(ttft_ms(r) for r in found))
                gaps = (gap for r in found for gap in itl_ms(r) or ())
                per_run.setdefault(f"{name}_itl_ms_p50", []).append(_median(gaps))
                worst = (max(itl_ms(r) or [0.0]) for r in found)
                per_run.setdefault(f"{name}_longest_gap_ms_p50", []).append(_median(worst))
    return {"runs": len(runs), **{name: {"each": v, **summarize(v)} for name, v in per_run.items()}}


def _records(run: Run) -> list[RequestRecord]:
    return run.records[run.observer] if run.observer is not None else []


def _median(values: Any) -> float | None:
    found = [value for value in values if value is not None]
    return round(median(found), 4) if found else None


def _paired(before: Sequence[Run], after: Sequence[Run]) -> dict[str, Any]:
    """The i-th repeat before with the i-th after, each request with itself; differences are after - before."""
    if before[0].header.trace_sha256 != after[0].header.trace_sha256 or before[0].header.trace_sha256 is None:
        return {"paired": False, "why": "the groups did not replay the same trace"}
    differences: dict[str, list[float]] = {}
    missing = 0
    for one, other in zip(before, after, strict=False):
        later = {record.request_id: record for record in _records(other)}
        for record in _records(one):
            match = later.get(record.request_id)
            if match is None or not (record.is_complete and match.is_complete):
                missing += 1
                continue
            name = record.request_class or "all"
            for metric, formula in (("ttft_ms", ttft_ms), ("tpot_ms", tpot_ms)):
                old, new = formula(record), formula(match)
                if old is not None and new is not None:
                    differences.setdefault(f"{name}_{metric}", []).append(new - old)
    summary = {
        name: summarize(values) | {"share_lower_after": round(sum(v < 0 for v in values) / len(values), 4)}
        for name, values in sorted(differences.items())
    }
    pairs = min(len(before), len(after))
    unpaired = len(before) + len(after) - 2 * pairs
    return {"paired": True, "run_pairs": pairs, "unpaired_runs": unpaired, "requests_without_pair": missing} | summary
