"""Prefix: the second request finds 512 of its 620 tokens in the cache."""

from __future__ import annotations

from .findings import Findings
from .log import TRACE_COMMAND, EventLog
from .scheduling import rounds, state_table

SHARED, OWN, LENGTH = 512, 108, 620


def analyze_prefix(log: EventLog) -> Findings:
    """After the marker: B starts with 512 cached tokens, computes 108, and reads 620 keys through its block table."""
    findings = Findings(log.trace_of("prefix"))
    marker = log.one("prefix_second_request", TRACE_COMMAND.format(case="prefix"))
    steps = log.steps()
    later = [step for step in steps if step.number > marker["step"]]
    if not later:
        raise log.missing("scheduled (after prefix_second_request)", TRACE_COMMAND.format(case="prefix"))
    ended = [e["status"] for step in steps if step.number == marker["step"] for e in step.after["batch"]]
    findings.expect("A had finished when B was added", ended, ["FINISHED"])
    first = later[0]
    b, inputs = first.scheduled["batch"][0], first.inputs
    findings.expect("the first request after the marker", b["request"], "B")
    findings.expect("B's first step, cached", b["cached"], SHARED)
    findings.expect("B's first step, scheduled", b["scheduled"], OWN)
    findings.expect("cu_seqlens_q", inputs["cu_seqlens_q"], [0, OWN])
    findings.expect("cu_seqlens_k", inputs["cu_seqlens_k"], [0, LENGTH])
    findings.expect("positions", inputs["positions"], list(range(SHARED, LENGTH)))
    findings.expect("block tables present", bool(inputs["block_tables"]), True)
    size = findings.run["config"]["block_size"]
    owner = next(e for e in steps[0].scheduled["batch"] if e["request"] == "A")
    shared = SHARED // size
    findings.expect(
        "B's first blocks are the ones that A filled", b["block_table"][:shared], owner["block_table"][:shared]
    )
    findings.facts = {
        "cached": b["cached"],
        "scheduled": b["scheduled"],
        "block_table_A": owner["block_table"],
        "block_table_B": b["block_table"],
        "rounds": rounds(steps),
    }
    findings.table = state_table(steps)
    return findings
