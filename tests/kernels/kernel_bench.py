"""Collects checks and times of kernels on a GPU: what `scripts/maintain/bench_kernels.py` is written with."""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch
from kernel_cases import relative_error


@dataclass
class Bench:
    """Collects rows, survives failures, and watches the clock."""

    budget: float
    tune: bool = False
    started: float = field(default_factory=time.monotonic)
    copy_bandwidth: float = 0.0  # bytes a second, read plus written
    checks: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def check(self, name: str, make: Callable[[], tuple[Any, Any]], limit: float = 1e-2) -> None:
        """`make` returns (kernel's tensor, reference)."""
        try:
            out, wanted = make()
            error = relative_error(out.float(), wanted.float())
            entry: dict[str, Any] = {"kernel": name, "error": error, "ok": error < limit}
        except Exception as problem:
            entry = {"kernel": name, "ok": False, "problem": summary(problem)}
        self.checks.append(entry)
        shown = entry.get("problem") or f"relative error {entry['error']:.2e}"
        click.echo(f"check  {'ok  ' if entry['ok'] else 'FAIL'} {name}: {shown}")

    def time(self, name: str, case: str, launch: Callable[[int], object], bytes_each: float, repeats: int) -> float:
        """Time `launch(i)` for i < repeats inside one graph; returns microseconds for one, 0.0 on failure."""
        row: dict[str, Any] = {"kernel": name, "case": case.strip()}
        self.rows.append(row)
        if time.monotonic() - self.started > self.budget:
            row["problem"] = "not run: out of budget"
            return 0.0
        try:
            row["us"] = graph_time(launch, repeats)
            row["gb_per_s"] = bytes_each / row["us"] / 1e3
            row["of_copy"] = row["gb_per_s"] * 1e9 / self.copy_bandwidth
        except Exception as problem:
            row["problem"] = summary(problem)
        if "problem" in row:
            click.echo(f"{name:34} {case:28} {row['problem']}")
            return 0.0
        click.echo(f"{name:34} {case:28} {row['us']:9.2f} us {row['gb_per_s']:8.0f} GB/s {row['of_copy']:7.1%} of copy")
        return float(row["us"])


def summary(problem: Exception) -> str:
    where = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{type(problem).__name__}: {str(problem)[:300]} ({Path(where.filename).name}:{where.lineno})"


def graph_time(launch: Callable[[int], object], repeats: int, replays: int = 15) -> float:
    """Median microseconds of one launch among `repeats` captured in a graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for i in range(min(repeats, 3)):
            launch(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(repeats):
            launch(i)
    times = []
    for _ in range(replays + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[3:]) * 1e3 / repeats


def measure_copy() -> float:
    """Bytes read plus written per second by a copy of 2 GiB. Not in a graph: there it becomes a copy-engine node,
    which is slower than the copy that a kernel makes."""
    source = torch.randint(0, 256, (2**31,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(13):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return 2 * source.nbytes / (statistics.median(times[3:]) * 1e-3)


# ---- tables, one row a case, for a page to show -----------------------------------------------------------------

STEP_COLUMNS = {
    "step, one row, PDL": "one_row",
    "step, one row": "one_row_no_pdl",
    "step, skinny, PDL": "skinny",
    "step, skinny": "skinny_no_pdl",
    "step, pieces, PDL": "pieces",
    "step, pieces": "pieces_no_pdl",
    "step, cuBLAS, PDL": "cublas",
    "step, cuBLAS": "cublas_no_pdl",
    "step, skinny in parts, PDL": "attention_in_parts",
    "step, pieces in parts, PDL": "attention_in_parts",
}
ATTENTION_COLUMNS = {"paged_decode_attention": "triton", "flash_attn_with_kvcache": "flash_attn"}
PREFILL_COLUMNS = {"prefill_attention": "triton", "flash_attn_varlen_func": "flash_attn"}
SAMPLE_COLUMNS = {"sample": "sample", "sample, greedy": "greedy", "torch.argmax": "torch_argmax"}
LINEAR_COLUMNS = {
    "linear": "here",
    "split_linear": "in_pieces",
    "F.linear": "cublas",
    "norm_linear": "with_norm",
    "gate_up_silu,": "with_silu",
}


def by_case(rows: list[dict[str, Any]], columns: dict[str, str]) -> list[dict[str, Any]]:
    """Microseconds of these kernels, one record a case."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["kernel"] in columns and "us" in row:
            found.setdefault(row["case"], {"case": row["case"]})[columns[row["kernel"]]] = round(row["us"], 1)
    return list(found.values())


def by_matrix(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Microseconds of the linear layers, one record for each matrix and number of rows, at the chosen sizes only."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        kernel, _, matrix = row["kernel"].rpartition(" ")
        if kernel in LINEAR_COLUMNS and "us" in row and " " not in row["case"]:
            record = found.setdefault((matrix, row["case"]), {"matrix": matrix, "case": row["case"]})
            record[LINEAR_COLUMNS[kernel]] = round(row["us"], 2)
    return list(found.values())


def tables(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    pages = {
        "steps": STEP_COLUMNS,
        "attention": ATTENTION_COLUMNS,
        "prefill": PREFILL_COLUMNS,
        "sampling": SAMPLE_COLUMNS,
    }
    return {name: by_case(rows, columns) for name, columns in pages.items()} | {"linear": by_matrix(rows)}
