"""5.6: what two GPUs of one host are used for. Where there are not two, these steps are listed as not run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nanolab.gpu_evidence.step import LOGITS, RUN, Program, Server, Step

__all__ = ["parallel_steps"]

SIZES = ("--batch-seqs", "4", "--max-active", "8")
DOUBLE = ("--batch-seqs", "8", "--max-active", "16")


def parallel_steps(id_of: Callable[[str], str], trace: str) -> Iterable[Step]:
    """`id_of` gives a name this run's suffix."""

    def log(name: str) -> str:
        return f"{{out}}/{id_of(name)}.jsonl"

    def replica(name: str, gpu: int, file: str) -> Server:
        """Its own address and shared memory (patch 04), so that two engines of one host never meet."""
        apart = ("--dist-init", f"tcp://127.0.0.1:{29501 + gpu}", "--shm-name", f"nano_replica_{name}")
        return Server((*SIZES, "--worker-id", f"replica-{name}", *apart, "--out", log(file)), str(gpu))

    def served(name: str, seconds: float, *servers: Server, router: str = "round_robin") -> Step:
        endpoints = ",".join(f"{{url{index}}}" for index in range(len(servers)))
        load = Program(
            RUN, ("load", "--endpoints", endpoints, "--router", router, "--trace", trace, "--out", log(name))
        )
        return Step(name, "5.6", seconds, (load,), files=(f"{id_of(name)}.jsonl",), servers=servers, gpus=2)

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
    yield served("single-endpoint", 25, replica("a", 0, "server-single-endpoint"))
    yield served("replicas", 25, replica("a", 0, "server-replica-a"), replica("b", 1, "server-replica-b"))
    pair = replica("a", 0, "server-replica-a-work"), replica("b", 1, "server-replica-b-work")
    yield served("replicas-work", 25, *pair, router="expected_work")
    routed = ("replicas", "replicas-work")
    name, inputs = "router-comparison", ",".join(map(log, routed))
    report = Program(RUN, ("report", "--inputs", inputs, "--out", f"{{out}}/{id_of(name)}.json"))
    yield Step(name, "5.6.2", 4, (report,), (id_of(name),), needs=routed, gpus=2)
    apart = ("--dist-init", "tcp://127.0.0.1:29503", "--shm-name", "nano_tp_two")
    both = Server((*DOUBLE, "--tp", "2", "--worker-id", "tp2", *apart, "--out", log("server-tp2")), "0,1")
    yield served("tp2", 35, both)
    logs = ("single-endpoint", "replicas", "tp2")
    name, inputs = "parallel-comparison", ",".join(map(log, logs))
    report = Program(RUN, ("report", "--inputs", inputs, "--out", f"{{out}}/{id_of(name)}.json"))
    yield Step(name, "5.6.2", 4, (report,), (id_of(name),), needs=logs, gpus=2)
