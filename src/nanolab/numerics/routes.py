"""Which decode route each group must have taken, beside which one it took."""

from __future__ import annotations

from .collection import Collection

LARGEST_BUCKET = 512


def buckets(max_num_seqs: int) -> list[int]:
    """Captured batch sizes: 1, 2, 4, 8, then every 16."""
    limit = min(max_num_seqs, LARGEST_BUCKET)
    return [size for size in (1, 2, 4, 8) if size <= limit] + list(range(16, limit + 1, 16))


def expected_route(execution: str, batch: int, max_num_seqs: int) -> str:
    """With patch 02: the smallest bucket that holds the batch, else the same model eagerly."""
    if execution == "eager":
        return "eager"
    size = next((size for size in buckets(max_num_seqs) if size >= batch), None)
    return "eager" if size is None else f"graph {size}"


def route_checks(lhs: Collection, rhs: Collection) -> dict[str, bool]:
    """{"graph: 9 -> graph 16": whether that ran} for every group of both sides; empty for Transformers."""
    checks: dict[str, bool] = {}
    for side in (lhs, rhs):
        config, routes = side.block["config"], side.result.get("routes", {})
        if config.get("suite") != "graph" or config.get("backend") != "nano":
            continue
        for name, ran in routes.items():
            wanted = expected_route(config["execution"], int(name), config["max_num_seqs"])
            checks[f"{config['execution']}: {name} -> {wanted}"] = ran == wanted
    return checks
