"""Lab B.5's red run: without patch 02 a decode batch larger than every captured graph raises StopIteration.

The first such batch of the graph suite is 17 (max_num_seqs 20 captures up to 16). Only exactly that counts.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .forced import ForcedRun
from .routes import buckets
from .suites import Suite


def judge_uncovered(run: ForcedRun, suite: Suite) -> tuple[bool, str, dict[str, Any]]:
    """(whether exactly the expected fault was seen, one line that says what was seen, facts for the block)."""
    largest = buckets(suite.max_num_seqs)[-1]
    batch = min(len(group.prompts) for group in suite.groups if len(group.prompts) > largest)
    fault = run.fault
    where = f"decode batch {batch}, largest captured graph {largest}"
    expected = fault is not None and (fault.type, fault.phase, fault.batch) == ("StopIteration", "decode", batch)
    if expected:
        line = f"expected failure seen: StopIteration at {where}"
    elif fault is None:
        ran = {group.name: group.decode_route for group in run.groups}
        line = f"the expected failure did not occur: {where} ran as {ran.get(str(batch))!r}; this engine is repaired"
    else:
        line = (
            f"another failure than the expected one: {fault.type}: {fault.message} "
            f"in a {fault.phase} step of {fault.batch} (expected StopIteration at {where})"
        )
    facts = {
        "expected_failure": expected,
        "fault": asdict(fault) if fault else None,
        "buckets": run.buckets,
        "routes": {group.name: group.decode_route for group in run.groups if group.decode_route},
    }
    return expected, line, facts
