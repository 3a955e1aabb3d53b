"""The one vocabulary of verdicts, exit codes and evidence types.

Contract: a script's last line, its exit code and the `check` of the block it writes all come from one
`Verdict` value, so they cannot disagree. Exit code 2 is no verdict: it is a usage error (`nanolab.errors`).
"""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What a run concluded; the value is the word printed last and stored as `check`."""

    PASS = "PASS"  # every acceptance value was checked and held
    COLLECTED = "COLLECTED"  # data was recorded; there was nothing to accept or refuse
    FAIL = "FAIL"  # an acceptance value did not hold
    REVIEW = "REVIEW"  # a threshold was breached that a person has to judge
    PENDING = "PENDING"  # a prerequisite (GPU, weights) is missing: neither pass nor fail

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Verdict.PASS: 0,
    Verdict.COLLECTED: 0,
    Verdict.FAIL: 1,
    Verdict.REVIEW: 3,
    Verdict.PENDING: 4,
}


class EvidenceType(StrEnum):
    """What kind of run a block's facts come from, from the strongest claim to the weakest."""

    GPU = "gpu"  # a real run on a GPU
    CPU_ENGINE = "cpu-engine"  # the real engine, on CPU
    CPU_SCHEDULER = "cpu-scheduler"  # the real scheduler and block manager, synthetic tokens
    CPU_SIMULATION = "cpu-simulation"  # the full interface in front of a simulated engine
    STATIC = "static"  # arithmetic
