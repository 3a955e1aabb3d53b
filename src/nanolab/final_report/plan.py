"""What a finished walk through the manual has recorded: the evidence the final report looks for.

Each item is one result block by the name of its file, the command that records it, and what its fact needs. A fact
that needs a GPU is not settled by a CPU block of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["EXPECTED", "MINIMUM", "RECORDS", "Expected", "Minimum", "Needs", "Record", "recorded_as"]


def recorded_as(name: str) -> tuple[str, str]:
    """The files of runs/, without suffix, that can hold `name`: a GPU record may stand beside the CPU one."""
    return name, f"{name}-gpu"


class Needs(StrEnum):
    CPU = "cpu"
    GPU = "gpu"
    TWO_GPUS = "two-gpus"


@dataclass(frozen=True)
class Expected:
    """One block: id (its file is runs/ID.json), section, what it needs, and how to record it."""

    id: str
    section: str
    needs: Needs
    command: str


@dataclass(frozen=True)
class Minimum:
    """One of the five kinds of evidence a report must have, and the blocks or event logs that can supply it."""

    zh: str
    en: str
    ids: tuple[str, ...]
    logs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """A plain file that goes with the report, and the command that makes it."""

    name: str
    command: str


_ANALYZE = "python scripts/e2e/analyze.py"
_REPORT = "python scripts/practice/run.py report"

EXPECTED = (
    Expected("setup-doctor", "5.1.6", Needs.GPU, "python scripts/e2e/doctor.py --out runs/setup-doctor.json"),
    Expected("quick-A", "5.2.1", Needs.GPU, "python scripts/e2e/quick_walk.py --case A --out runs/quick-A.json"),
    Expected("quick-B", "5.2.2", Needs.GPU, "python scripts/e2e/quick_walk.py --case B --out runs/quick-B.json"),
    Expected("quick-C", "5.2.3", Needs.GPU, "python scripts/e2e/quick_walk.py --case C --out runs/quick-C.json"),
    Expected("budget512", "5.2.4", Needs.GPU, "python scripts/e2e/quick_walk.py --case D --out runs/budget512.json"),
    Expected("budget256", "5.2.4", Needs.GPU,
             "python scripts/e2e/quick_walk.py --case D --budget 256 --out runs/budget256.json"),
    Expected("budget-cpu", "5.2.4", Needs.CPU, "python scripts/e2e/check_budget_cpu.py --out runs/budget-cpu.json"),
    Expected("engine-logits-check", "5.2.5", Needs.GPU,
             "python scripts/e2e/logits_check.py compare --lhs runs/engine-nano --rhs runs/engine-hf "
             "--max-abs 0.5 --rel-l2 0.02 --out runs/engine-logits-check.json"),
    Expected("scheduler-cpu", "5.4.2", Needs.CPU,
             "python scripts/e2e/scheduler_practice.py --out runs/scheduler-cpu.json"),
    Expected("scheduler-comparison", "5.4.3", Needs.GPU,
             f"{_REPORT} --inputs runs/scheduler-prefill_first.jsonl,runs/scheduler-balanced.jsonl "
             "--out runs/scheduler-comparison.json"),
    Expected("execution-comparison", "5.5.2", Needs.GPU,
             f"{_REPORT} --inputs runs/execution-eager.jsonl,runs/execution-graph.jsonl "
             "--out runs/execution-comparison.json"),
    Expected("tensor-parallel-shapes", "5.6.1", Needs.CPU,
             "python scripts/e2e/principles.py shapes --tp 2 --out runs/tensor-parallel-shapes.json"),
    Expected("parallel-comparison", "5.6.2", Needs.TWO_GPUS,
             f"{_REPORT} --inputs runs/single-endpoint.jsonl,runs/replicas.jsonl,runs/tp2.jsonl "
             "--out runs/parallel-comparison.json"),
    Expected("tokenizer", "B.1.1", Needs.CPU,
             "python scripts/e2e/principles.py tokenizer --out runs/tokenizer.json"),
    Expected("attention", "B.1.2", Needs.CPU,
             "python scripts/e2e/principles.py attention --out runs/attention.json"),
    Expected("generation-timeline", "B.1.3", Needs.CPU,
             "python scripts/e2e/principles.py timeline --out runs/generation-timeline.json"),
    Expected("kv-cache-math", "B.1.4", Needs.CPU,
             "python scripts/e2e/principles.py cache --out runs/kv-cache-math.json"),
    Expected("memory-budget", "B.1.5", Needs.CPU,
             "python scripts/e2e/principles.py memory --out runs/memory-budget.json"),
    Expected("cached-forward-check", "B.1.6", Needs.GPU,
             f"{_ANALYZE} cache --log runs/cached-forward.log --out runs/cached-forward-check.json"),
    Expected("lifecycle-check", "B.2.1", Needs.GPU,
             f"{_ANALYZE} lifecycle --log runs/lifecycle.log --out runs/lifecycle-check.json"),
    Expected("scheduler-check", "B.2.2", Needs.GPU,
             f"{_ANALYZE} chunk --log runs/chunked-prefill.log --out runs/scheduler-check.json"),
    Expected("scheduler-preemption", "B.2.2", Needs.CPU,
             "python scripts/e2e/cpu_scheduler.py preempt --out runs/scheduler-preemption.json"),
    Expected("kv-slots", "B.2.3", Needs.CPU,
             "python scripts/e2e/principles.py slots --out runs/kv-slots.json"),
    Expected("kv-slots-runtime", "B.2.3", Needs.GPU,
             f"{_ANALYZE} slots --log runs/lifecycle.log --out runs/kv-slots-runtime.json"),
    Expected("model-shapes", "B.3", Needs.CPU,
             "python scripts/e2e/principles.py shapes --tp 1 --out runs/model-shapes.json"),
    Expected("runner-check", "B.3", Needs.GPU,
             f"{_ANALYZE} runner --log runs/lifecycle.log --out runs/runner-check.json"),
    Expected("model-shapes-check", "B.3", Needs.GPU,
             f"{_ANALYZE} shapes --log runs/lifecycle.log --out runs/model-shapes-check.json"),
    Expected("cuda-graph-comparison", "B.4", Needs.GPU,
             f"{_ANALYZE} compare --variable eager --log runs/cuda-graph-eager.log "
             "--other runs/cuda-graph-replay.log --out runs/cuda-graph-comparison.json"),
    Expected("graph-fallback-check", "B.5", Needs.GPU,
             "python scripts/e2e/logits_check.py compare --lhs runs/graph-eager --rhs runs/graph-patched "
             "--max-abs 0.5 --rel-l2 0.02 --kv-max-abs 0.1 --out runs/graph-fallback-check.json"),
    Expected("graph-fallback-performance", "B.5", Needs.GPU,
             f"{_ANALYZE} compare --variable eager --log runs/graph-fallback-eager.log "
             "--other runs/graph-fallback-replay.log --out runs/graph-fallback-performance.json"),
    Expected("prefix-cache-check", "B.6", Needs.GPU,
             f"{_ANALYZE} prefix --log runs/prefix-cache.log --out runs/prefix-cache-check.json"),
    Expected("prefix-cache-refs", "B.6", Needs.CPU,
             "python scripts/e2e/cpu_scheduler.py refs --out runs/prefix-cache-refs.json"),
)  # fmt: skip

MINIMUM = (
    Minimum("一条请求时间线", "One request timeline", ("quick-A", "quick-B", "lifecycle-check")),
    Minimum("一次固定轨迹的数值比较", "One fixed-trajectory numeric comparison",
            ("engine-logits-check", "graph-fallback-check")),
    Minimum("一组调度或执行的前后对照", "One scheduling or execution before/after",
            ("scheduler-comparison", "execution-comparison", "cuda-graph-comparison",
             "graph-fallback-performance")),
    Minimum("一次双 GPU 部署比较", "One two-GPU deployment comparison", ("parallel-comparison",)),
    Minimum("一份取消或过载的回收记录", "One record of reclaiming after cancel or overload",
            (), ("client-cancel", "server-cancel", "server-overload", "runtime-cpu", "server-single")),
)  # fmt: skip

RECORDS = (
    Record("engine-changes.patch", 'git -C "$NANO_DIR" diff "$NANO_COMMIT" > runs/engine-changes.patch'),
    Record("source-head.txt", 'git -C "$NANO_DIR" rev-parse HEAD > runs/source-head.txt'),
    Record("environment.txt", "python -m pip freeze > runs/environment.txt"),
)
