"""What one step of the evidence run is: programs, the blocks they must leave, and what the step needs.

A step's name is unique; its blocks and files carry the run's suffix (`quick-A` leaves `quick-A-gpu.json`). In
arguments `{out}` is the output directory, `{url0}` a server's address, `{upstream}` and `{baseline}` engines.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RUN", "Program", "Server", "Step"]

RUN = "scripts/practice/run.py"
LOGITS = "scripts/e2e/logits_check.py"


@dataclass(frozen=True)
class Program:
    """One program of scripts/ with its options.

    `log`: its standard output becomes this file, as `| tee` would make it. `alone`: a process of its own, for a
    program that drives another engine or starts processes that measure. `expect`: exit codes that mean that it ran
    as it should; REVIEW (3) is a result for a person to judge, not a failed step. `pending_on_cpu`: without a GPU
    it may end PENDING (4), or FAIL (1) or refuse (2) because of what a PENDING one left out.
    """

    script: str
    arguments: tuple[str, ...] = ()
    log: str | None = None
    alone: bool = False
    expect: tuple[int, ...] = (0, 3)
    pending_on_cpu: bool = False
    timeout_s: float = 180.0


@dataclass(frozen=True)
class Server:
    """`run.py serve` with these options, alive while the step's programs run."""

    arguments: tuple[str, ...]
    gpus: str = "0"  # its CUDA_VISIBLE_DEVICES, among those that the run sees


@dataclass(frozen=True)
class Step:
    name: str
    section: str  # of the manual
    seconds: float  # on an H200, to decide whether it still fits
    programs: tuple[Program, ...]
    blocks: tuple[str, ...] = ()  # ids, with the run's suffix
    files: tuple[str, ...] = ()  # names of what later steps read, besides blocks
    needs: tuple[str, ...] = ()  # names of the steps whose files it reads
    servers: tuple[Server, ...] = ()
    gpus: int = 1
    requires: str | None = None  # "flash_attn", "upstream" or "baseline"
