"""5.6: what two GPUs of one host are used for. Where there are not two, these steps are listed as not run.

Each deployment is measured `repeats` times, every time with servers of its own: a server that has run the trace once
would find the long prompts in its prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from nanolab.gpu_evidence.step import LOGITS, RUN, Program, Server, Step

__all__ = ["parallel_steps"]

SIZES = ("--policy", "balanced", "--batch-seqs", "4", "--max-active", "8")
DOUBLE = ("--policy", "balanced", "--batch-seqs", "8", "--max-active", "16")
APART = ("--dist-init", "tcp://127.0.0.1:29503", "--shm-name", "nano_tp_two")


def parallel_steps(id_of: Callable[[str], str], trace: str, repeats: int) -> Iterable[Step]:
    """`id_of` gives a name this run's suffix."""

    def log(name: str) -> str:
        return f"{{out}}/{id_of(name)}.jsonl"

    def replica(name: str, gpu: int) -> Server:
        """Its own address and shared memory (patch 04), so that two engines of one host never meet."""
        apart = ("--dist-init", f"tcp://127.0.0.1:{29501 + gpu}", "--shm-name", f"nano_replica_{name}")
        return Server((*SIZES, "--worker-id", f"replica-{name}", *apart), str(gpu))

    def runs(name: str) -> list[str]:
        return [f"{name}-{number}" for number in range(1, repeats + 1)]

    def served(name: str, seconds: float, *servers: Server, router: str = "round_robin") -> Iterable[Step]:
        endpoints = ",".join(f"{{url{index}}}" for index in range(len(servers)))
        for run in runs(name):
            asked = ("--endpoints", endpoints, "--router", router, "--trace", trace, "--out", log(run))
            logged = (
                replace(server, arguments=(*server.arguments, "--out", log(f"server{index}-{run}")))
                for index, server in enumerate(servers)
            )
            load = Program(RUN, ("load", *asked))
            yield Step(run, "5.6", seconds, (load,), files=(f"{id_of(run)}.jsonl",), servers=tuple(logged), gpus=2)

    def reported(name: str, *deployments: str) -> Step:
        logs = tuple(run for deployment in deployments for run in runs(deployment))
        inputs = ",".join(map(log, logs))
        report = Program(RUN, ("report", "--inputs", inputs, "--out", f"{{out}}/{id_of(name)}.json"))
        return Step(name, "5.6.2", 5, (report,), (id_of(name),), needs=logs, gpus=2)

    walk = ("--case", "A", "--tp", "2", "--out", f"{{out}}/{id_of('quick-A-tp2')}.json")
    program = Program("scripts/e2e/quick_walk.py", walk, alone=True)
    yield Step("quick-A-tp2", "5.6.2", 30, (program,), (id_of("quick-A-tp2"),), gpus=2)
    shards = f"{{out}}/{id_of('engine-nano-tp2')}"
    collected = Program(LOGITS, ("collect", "--backend", "nano", "--tp", "2", "--out", shards), alone=True)
    rows = (f"{id_of('engine-nano-tp2')}.npz",)
    yield Step("engine-nano-tp2", "5.6.2", 25, (collected,), (id_of("engine-nano-tp2"),), files=rows, gpus=2)
    sides = ("--lhs", f"{{out}}/{id_of('engine-nano')}", "--rhs", shards, "--max-abs", "0.5", "--rel-l2", "0.02")
    name = "engine-logits-tp"
    compared = Program(LOGITS, ("compare", *sides, "--out", f"{{out}}/{id_of(name)}.json"))
    needs = ("engine-nano", "engine-nano-tp2")
    yield Step(name, "5.6.2", 4, (compared,), (id_of(name),), needs=needs, gpus=2)
    pair = replica("a", 0), replica("b", 1)
    both = Server((*DOUBLE, "--tp", "2", "--worker-id", "tp2", *APART), "0,1")
    yield from served("single-endpoint", 14, pair[0])
    yield from served("replicas", 16, *pair)
    yield from served("tp2", 25, both)
    yield reported("parallel-comparison", "single-endpoint", "replicas", "tp2")
    yield from served("replicas-work", 16, *pair, router="expected_work")
    yield reported("router-comparison", "replicas", "replicas-work")
    yield profiled(id_of, trace)


def profiled(id_of: Callable[[str], str], trace: str) -> Step:
    """What the ranks of TP=2 say to each other, and how much memory one of them needs."""
    name = id_of("profile-tp2")
    directory, log = f"{{out}}/{name}", f"{{out}}/{name}.jsonl"
    engine = ("--tp", "2", *DOUBLE, *APART)
    recording = ("--profile-dir", directory, "--profile-steps", "20")
    load = Program(RUN, ("load", "--trace", trace, *engine, *recording, "--out", log), alone=True)
    arguments = ("--profile", directory, "--log", log, "--out", f"{directory}.json")
    view = Program("scripts/maintain/profile_view.py", arguments)
    return Step("profile-tp2", "5.6.2", 40, (load, view), blocks=(name,), gpus=2)
