"""Is this host ready? One report, with CPU and GPU readiness judged apart.

Contract: `examine` never raises because of the machine: a check that breaks is a FAIL that says how. CPU readiness
is PASS or FAIL. GPU readiness is PENDING where no GPU is visible (nothing is wrong, something is missing), FAIL
where a check of a GPU host fails, else PASS. `check`, the whole verdict, is PASS only when both are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nanolab.doctor.checks import CPU_CHECKS, GPU_CHECKS, Check, Examination, Finding, Status
from nanolab.doctor.host import Host
from nanolab.verdicts import Verdict

__all__ = ["Examination", "Finding", "Host", "Report", "Status", "examine"]

_NOW_ON_CPU = (
    "python scripts/e2e/quick_walk.py --case A --model models/tiny --out runs/quick-A.json",
    "python scripts/e2e/check_budget_cpu.py --out runs/budget-cpu.json",
    "python scripts/e2e/cpu_scheduler.py preempt --out runs/scheduler-preemption.json",
    "python scripts/e2e/principles.py attention --out runs/attention.json",
)
_NOW_ON_GPU = ("python scripts/e2e/smoke.py", "python scripts/e2e/quick_walk.py --case A --out runs/quick-A.json")


@dataclass(frozen=True)
class Report:
    """What was found; `document()` is the JSON that doctor.py prints."""

    cpu: list[tuple[str, Finding]]
    gpu: list[tuple[str, Finding]]
    no_gpu: str  # why no GPU check could run; empty when they did
    cpu_only: bool  # the learner asked about CPU readiness only

    @property
    def cpu_readiness(self) -> Verdict:
        return Verdict.FAIL if _failed(self.cpu) else Verdict.PASS

    @property
    def gpu_readiness(self) -> Verdict:
        if self.no_gpu:
            return Verdict.PENDING
        return Verdict.FAIL if _failed(self.cpu) or _failed(self.gpu) else Verdict.PASS

    @property
    def computed_on_gpu(self) -> bool:
        """Whether the CUDA computation ran and was right: what makes this report GPU evidence."""
        return any(name == "cuda-computation" and finding.status is Status.OK for name, finding in self.gpu)

    @property
    def verdict(self) -> Verdict:
        if self.cpu_only or self.cpu_readiness is Verdict.FAIL:
            return self.cpu_readiness
        return self.gpu_readiness

    def document(self) -> dict[str, Any]:
        return {
            "check": self.verdict.value,
            "cpu_readiness": self.cpu_readiness.value,
            "gpu_readiness": self.gpu_readiness.value,
            "summary": self._summary(),
            "available_now": list(self._available()),
            "checks": [_row(name, "cpu", f) for name, f in self.cpu] + [_row(name, "gpu", f) for name, f in self.gpu],
        }

    def _summary(self) -> str:
        if self.cpu_readiness is Verdict.FAIL:
            return f"Not ready: mend {', '.join(_failed(self.cpu))} first; each failing check has its fix."
        if self.gpu_readiness is Verdict.PASS:
            return "Ready for the CPU and the GPU parts of the manual."
        cpu = "Ready for every CPU command of the manual, on the real engine."
        if self.no_gpu:
            return f"{cpu} GPU results stay PENDING: {self.no_gpu}."
        return f"{cpu} Before GPU work, mend {', '.join(_failed(self.gpu))}."

    def _available(self) -> Iterable[str]:
        if self.cpu_readiness is Verdict.FAIL:
            return ()
        return _NOW_ON_GPU if self.gpu_readiness is Verdict.PASS else _NOW_ON_CPU


def examine(exam: Examination, cpu_only: bool = False) -> Report:
    """Run every check in isolation and judge."""
    no_gpu = _why_no_gpu(exam)
    gpu = [_skipped(check, no_gpu) for check in GPU_CHECKS] if no_gpu else _run(GPU_CHECKS, exam)
    return Report(cpu=_run(CPU_CHECKS, exam), gpu=gpu, no_gpu=no_gpu, cpu_only=cpu_only)


def _why_no_gpu(exam: Examination) -> str:
    """Why the GPU checks cannot be judged. A GPU that torch cannot use is no reason: that is a FAIL to mend."""
    if not exam.gpus:
        return "no NVIDIA GPU is visible (nvidia-smi is missing or lists none)"
    hidden = exam.host.visible_devices()
    if hidden is not None and hidden.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={hidden!r} hides this host's GPUs"
    return ""


def _run(checks: Iterable[Check], exam: Examination) -> list[tuple[str, Finding]]:
    return [(check.name, _look(check, exam)) for check in checks]


def _look(check: Check, exam: Examination) -> Finding:
    try:
        return check.look(exam)
    except Exception as error:  # whatever a broken installation throws is this check's finding
        observed = str(error) or type(error).__name__
        return Finding(Status.FAIL, observed, f"the check {check.name} runs", check.if_it_breaks)


def _skipped(check: Check, reason: str) -> tuple[str, Finding]:
    return check.name, Finding(Status.SKIP, reason, "a visible NVIDIA GPU")


def _failed(findings: Iterable[tuple[str, Finding]]) -> list[str]:
    return [name for name, finding in findings if finding.status is Status.FAIL]


def _row(name: str, needed_for: str, finding: Finding) -> dict[str, str]:
    return {
        "name": name,
        "needed_for": needed_for,
        "status": finding.status.value,
        "observed": finding.observed,
        "expected": finding.expected,
        "fix": finding.fix,
    }
