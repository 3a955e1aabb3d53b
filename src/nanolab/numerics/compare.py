"""Judging two collections: FAIL when they are not the same experiment, REVIEW when the numbers need a look, else PASS.

    FAIL    hashes, settings, rows or trajectory differ; a value is not finite; a check made while collecting failed
    REVIEW  a row beyond a threshold, or another top-1
    PASS    every row within both thresholds with the same top-1

max_abs is the largest |lhs - rhs| of a row, rel_l2 is ||lhs - rhs|| / ||rhs||. Passing covers neither sampling nor
EOS, tensor parallelism or cancellation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanolab.verdicts import Verdict

from .collection import Collection
from .forced import Float32
from .routes import route_checks
from .suites import IDENTITY

SETTINGS = ("suite", "dtype", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")
NUMBERS = ("max_abs", "rel_l2", "margin")
CHECKS = ("history_unchanged", "others_unchanged", "padding_safe")


@dataclass(frozen=True)
class Thresholds:
    max_abs: float
    rel_l2: float
    kv_max_abs: float | None = None


@dataclass
class Judgement:
    faults: list[str] = field(default_factory=list)  # any of them: FAIL
    breaches: list[str] = field(default_factory=list)  # any of them: REVIEW
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        return Verdict.FAIL if self.faults else Verdict.REVIEW if self.breaches else Verdict.PASS


def judge(lhs: Collection, rhs: Collection, limits: Thresholds) -> Judgement:
    judgement = Judgement(faults=same_experiment(lhs, rhs))
    comparable = lhs.logits.shape == rhs.logits.shape and len(lhs.trajectory) == len(lhs.logits)
    if not comparable:
        judgement.faults.append(f"logits: {lhs.logits.shape} against {rhs.logits.shape}, not the same rows")
        return judgement
    _judge_rows(judgement, lhs, rhs, limits)
    for side in (lhs, rhs):
        judgement.faults += [f"{side.name}: {name} is false" for name in CHECKS if side.result.get(name) is False]
    routes = route_checks(lhs, rhs)
    judgement.facts["routes"] = routes
    judgement.faults += [f"route {name} did not run" for name, ran in routes.items() if not ran]
    if limits.kv_max_abs is not None:
        _judge_kv(judgement, lhs, rhs, limits)
    return judgement


# ---- the same experiment? --------------------------------------------------------------------------------


def same_experiment(lhs: Collection, rhs: Collection) -> list[str]:
    """Every reason why the two sides may not be compared."""
    faults = [
        f"{side.name}: PREFIX.npz is not the file its block was written with" for side in (lhs, rhs) if not side.intact
    ]
    for name in ("config_sha256", "weights_sha256"):
        faults += _differ(f"model {name}", lhs.block["model"][name], rhs.block["model"][name])
    for name in SETTINGS:
        if name in lhs.block["config"] and name in rhs.block["config"]:
            faults += _differ(name, lhs.block["config"][name], rhs.block["config"][name])
    faults += _differ("number of rows", len(lhs.trajectory), len(rhs.trajectory))
    faults += _differ("expected rows", lhs.result["expected_rows"], len(lhs.trajectory))
    for number, (left, right) in enumerate(zip(lhs.trajectory, rhs.trajectory, strict=False), 1):
        wrong = [name for name in IDENTITY if left.get(name) != right.get(name)]
        if wrong:
            name = wrong[0]
            faults.append(f"trajectory: row {number} has {name} {left.get(name)!r} against {right.get(name)!r}")
            break  # one is enough: everything after it is another trajectory
    return faults


def _differ(what: str, left: object, right: object) -> list[str]:
    return [] if left == right else [f"{what} differs: {left!r} against {right!r}"]


# ---- numbers ---------------------------------------------------------------------------------------------


def label(row: dict[str, Any]) -> str:
    return f"{row['group']}/{row['request']} round {row['round']} (position {row['position']})"


def errors(left: Float32, right: Float32) -> tuple[float, float]:
    """(max_abs, rel_l2) of one pair, computed in float64."""
    wide_left, wide_right = left.astype(np.float64).ravel(), right.astype(np.float64).ravel()
    delta = wide_left - wide_right
    norm = float(np.linalg.norm(wide_right))
    relative = float(np.linalg.norm(delta)) / norm if norm else float("inf") if delta.any() else 0.0
    return float(np.abs(delta).max()), relative


def _judge_rows(judgement: Judgement, lhs: Collection, rhs: Collection, limits: Thresholds) -> None:
    table = []
    for row, left, right in zip(lhs.trajectory, lhs.logits, rhs.logits, strict=True):
        entry = _judge_row(judgement, label(row), left, right, limits)
        table.append(entry)
    finite = [entry for entry in table if entry["finite"]]
    abnormal = [entry["row"] for entry in table if not entry["within"]]
    judgement.facts |= {
        "rows": len(table),
        "rows_within": sum(entry["within"] for entry in table),
        "top1_agree": sum(entry["top1_equal"] for entry in table),
        "first_abnormal": abnormal[0] if abnormal else None,
        "worst": {
            name: max(({"row": e["row"], "value": e[name]} for e in finite), key=lambda w: w["value"], default=None)
            for name in ("max_abs", "rel_l2")
        },
        "table": table,
    }


def _judge_row(judgement: Judgement, name: str, left: Float32, right: Float32, limits: Thresholds) -> dict[str, Any]:
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        judgement.faults.append(f"row {name}: a logit is not finite")
        return {"row": name, "finite": False, "within": False, "top1_equal": False} | dict.fromkeys(NUMBERS)
    max_abs, rel_l2 = errors(left, right)
    top1 = int(left.argmax()), int(right.argmax())
    breaches = []
    if max_abs > limits.max_abs:
        breaches.append(f"max_abs {max_abs:.4g} > {limits.max_abs:g}")
    if rel_l2 > limits.rel_l2:
        breaches.append(f"rel_l2 {rel_l2:.4g} > {limits.rel_l2:g}")
    if top1[0] != top1[1]:
        breaches.append(f"top-1 {top1[0]} against {top1[1]}")
    if breaches:
        judgement.breaches.append(f"row {name}: {', '.join(breaches)}")
    return {
        "row": name,
        "finite": True,
        "within": not breaches,
        "top1_equal": top1[0] == top1[1],
        "max_abs": max_abs,
        "rel_l2": rel_l2,
        "margin": margin(right),
    }


def margin(row: Float32) -> float:
    """How far the reference's first candidate is ahead: a top-1 that differs means little where this is tiny."""
    second, first = np.partition(row, -2)[-2:].tolist()
    return float(first - second)


def _judge_kv(judgement: Judgement, lhs: Collection, rhs: Collection, limits: Thresholds) -> None:
    """New K and V, layer by layer; each is a threshold of its own."""
    if lhs.kv is None or rhs.kv is None or lhs.kv.shape != rhs.kv.shape:
        judgement.faults.append("--kv-max-abs was given, but the two sides hold no K and V of the same shape")
        return
    if not (np.isfinite(lhs.kv).all() and np.isfinite(rhs.kv).all()):
        judgement.faults.append("a new K or V is not finite")
        return
    assert limits.kv_max_abs is not None
    layers: list[dict[str, Any]] = []
    for layer in range(lhs.kv.shape[1]):
        for index, name in enumerate("kv"):
            pairs = [errors(a, b) for a, b in zip(lhs.kv[:, layer, index], rhs.kv[:, layer, index], strict=True)]
            max_abs, rel_l2 = max(p[0] for p in pairs), max(p[1] for p in pairs)
            layers.append({"layer": layer, "part": name, "max_abs": max_abs, "rel_l2": rel_l2})
            if max_abs > limits.kv_max_abs or rel_l2 > limits.rel_l2:
                judgement.breaches.append(f"layer {layer} {name}: max_abs {max_abs:.4g}, rel_l2 {rel_l2:.4g}")
    judgement.facts["kv"] = {
        "rows": lhs.kv.shape[0],
        "worst_max_abs": max(entry["max_abs"] for entry in layers),
        "worst_rel_l2": max(entry["rel_l2"] for entry in layers),
        "layers": layers,
    }
