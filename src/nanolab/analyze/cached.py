"""Lab 02's log: position counts and errors of the two ways to generate. Counts say nothing about speed."""

from __future__ import annotations

import math

from .findings import Findings
from .log import EventLog

MAKE = "python scripts/labs/02_cached_forward.py --prompt-len 64 --steps 8"


def position_counts(prompt_len: int, steps: int) -> tuple[int, int]:
    """(without, with) a cache: each step recomputes everything known, or only the newest token after the prompt."""
    without = sum(prompt_len + step for step in range(steps))
    return without, prompt_len + steps - 1


def analyze_cache(log: EventLog) -> Findings:
    """PASS: the counts are those of the log's own lengths (540 and 71 for 64 and 8) and the errors are finite."""
    event = log.one("cached_forward", MAKE)
    findings = Findings(event)
    config = event["config"]
    without, with_cache = position_counts(config["prompt_len"], config["steps"])
    findings.expect("input positions without a cache", event["positions_without_cache"], without)
    findings.expect("input positions with a cache", event["positions_with_cache"], with_cache)
    for name in ("max_abs_logit_error", "relative_l2_logit_error"):
        value = event[name]
        findings.expect(f"{name} is finite", isinstance(value, int | float) and math.isfinite(value), True)
    findings.facts = {
        "prompt_len": config["prompt_len"],
        "steps": config["steps"],
        "positions_without_cache": event["positions_without_cache"],
        "positions_with_cache": event["positions_with_cache"],
        "max_abs_logit_error": event["max_abs_logit_error"],
        "relative_l2_logit_error": event["relative_l2_logit_error"],
        "same_top1_steps": event["same_top1_steps"],
    }
    return findings
