"""The steps of the evidence run, most important first, except that what measures longest comes last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nanolab.gpu_evidence.parallel import parallel_steps
from nanolab.gpu_evidence.step import LOGITS, RUN, Program, Server, Step

__all__ = ["Settings", "build_plan"]

ANALYZE = "scripts/e2e/analyze.py"
TRACED = {"lifecycle": "lifecycle", "chunk": "chunked-prefill", "prefix": "prefix-cache"}  # case: its log's name
CHECKS = {  # block: (analyze.py's subcommand, log)
    "lifecycle-check": ("lifecycle", "lifecycle"),
    "scheduler-check": ("chunk", "chunked-prefill"),
    "kv-slots-runtime": ("slots", "chunked-prefill"),
    "runner-check": ("runner", "lifecycle"),
    "runner-check-chunk": ("runner", "chunked-prefill"),
    "runner-check-prefix": ("runner", "prefix-cache"),
    "model-shapes-check": ("shapes", "lifecycle"),
    "prefix-cache-check": ("prefix", "prefix-cache"),
}
# What exists on a GPU only has no CPU twin to be told from, so its id carries no suffix.
GPU_ONLY = frozenset(
    f"{group}-{name}"
    for group, names in {
        "cuda-graph": ("eager", "replay", "comparison"),
        "graph-fallback": ("eager", "replay", "check", "performance"),
        "graph": ("before", "eager", "patched"),
        "bench": ("engines",),
    }.items()
    for name in names
)
THRESHOLDS = ("--max-abs", "0.5", "--rel-l2", "0.02")


@dataclass(frozen=True)
class Settings:
    """`quick` keeps every program and shortens its work: a rehearsal of the run, not of its numbers."""

    quick: bool = False
    suffix: str = "-gpu"
    trace: str = "workloads/mixed.jsonl"

    def id(self, name: str) -> str:
        """The block that a step called `name` leaves on this run's device."""
        return name if self.suffix == "-gpu" and name in GPU_ONLY else name + self.suffix

    def out(self, name: str, ending: str = ".json") -> str:
        return f"{{out}}/{self.id(name)}{ending}"


def build_plan(settings: Settings) -> tuple[Step, ...]:
    return (
        *readiness(settings),
        *walks(settings),
        *logits(settings),
        *graph_logits(settings),
        *benchmarks(settings),
        *traces(settings),
        *cached_forward(settings),
        *policies(settings),
        *execution(settings),
        *service(settings),
        multi_turn(settings),
        *parallel_steps(settings.id, settings.trace, 1 if settings.quick else 3),
        step_parts(settings),
        engines(settings),
        kernels(settings),
        marked_tests(),
        *upstream(settings),
    )


def single(settings: Settings, name: str, section: str, seconds: float, program: Program) -> Step:
    """The common step: one program, one block of the step's name."""
    written = replace(program, arguments=(*program.arguments, "--out", settings.out(name)))
    return Step(name, section, seconds, (written,), blocks=(settings.id(name),))


# ---- 5.1, 5.2 --------------------------------------------------------------------------------------------


def readiness(settings: Settings) -> Iterable[Step]:
    # A host that is not ready is a finding of the doctor, not a step that failed.
    doctor = Program("scripts/e2e/doctor.py", expect=(0, 1), pending_on_cpu=True)
    yield single(settings, "setup-doctor", "5.1.6", 14, doctor)
    yield single(settings, "setup-smoke", "5.1.6", 6, Program("scripts/e2e/smoke.py"))


def walks(settings: Settings) -> Iterable[Step]:
    cases = {
        "quick-A": ("5.2.1", ("--case", "A")),
        "quick-B": ("5.2.2", ("--case", "B")),
        "quick-B-one": ("5.2.2", ("--case", "B", "--max-num-seqs", "1")),
        "quick-C": ("5.2.3", ("--case", "C")),
        "budget512": ("5.2.4", ("--case", "D", "--budget", "512")),
        "budget256": ("5.2.4", ("--case", "D", "--budget", "256")),
    }
    for name, (section, arguments) in cases.items():
        walk = Program("scripts/e2e/quick_walk.py", (*arguments, "--trace"), log=f"{settings.id(name)}.log")
        yield single(settings, name, section, 4, walk)


# ---- logits ----------------------------------------------------------------------------------------------


def collect(settings: Settings, name: str, section: str, seconds: float, program: Program) -> Step:
    """A collection is named by its prefix: NAME.json is the block, NAME.npz holds the rows."""
    written = replace(program, arguments=("collect", *program.arguments, "--out", settings.out(name, "")))
    return Step(
        name, section, seconds, (written,), blocks=(settings.id(name),), files=(f"{settings.id(name)}.npz",)
    )  # fmt: skip


def compare(settings: Settings, name: str, section: str, sides: tuple[str, str], *more: str, graph: bool) -> Step:
    lhs, rhs = (settings.out(side, "") for side in sides)
    arguments = ("compare", "--lhs", lhs, "--rhs", rhs, *THRESHOLDS, *more)
    program = Program(LOGITS, arguments, pending_on_cpu=graph)
    return replace(single(settings, name, section, 5, program), needs=sides)


def logits(settings: Settings) -> Iterable[Step]:
    """The engine against Transformers, once with each attention backend that the host has."""
    yield collect(settings, "engine-hf", "5.2.5", 8, Program(LOGITS, ("--backend", "hf")))
    for kind, backend in (("", "auto"), ("-flash", "flash_attn")):
        nano, check = f"engine-nano{kind}", f"engine-logits-check{kind}"
        arguments = ("--backend", "nano", "--execution", "eager", "--attention-backend", backend)
        requires = backend if kind else None
        yield replace(collect(settings, nano, "5.2.5", 5, Program(LOGITS, arguments)), requires=requires)
        yield replace(compare(settings, check, "5.2.5", (nano, "engine-hf"), graph=False), requires=requires)


def graph_logits(settings: Settings) -> Iterable[Step]:
    suite = ("--backend", "nano", "--suite", "graph", "--execution")
    yield collect(settings, "graph-eager", "B.5", 8, Program(LOGITS, (*suite, "eager")))
    replayed = Program(LOGITS, (*suite, "graph"), pending_on_cpu=True)
    yield collect(settings, "graph-patched", "B.5", 12, replayed)
    sides = ("graph-patched", "graph-eager")
    yield compare(settings, "graph-fallback-check", "B.5", sides, "--kv-max-abs", "0.1", graph=True)
    arguments = (*suite, "graph", "--expect-uncovered", "--source", "{baseline}")
    uncovered = Program(LOGITS, arguments, alone=True, expect=(0,), pending_on_cpu=True)
    yield replace(collect(settings, "graph-before", "B.5", 22, uncovered), files=(), requires="baseline")


# ---- benchmarks, traces, cached forward ------------------------------------------------------------------


def benchmarks(settings: Settings) -> Iterable[Step]:
    """Eager beside graphs: 16 requests in covered buckets, then 17, for which 20 sequences leave no bucket."""
    shorter = ("--seqs", "2", "--output-len", "4", "--repeats", "1") if settings.quick else ()
    for section, pair, result, sizes in (
        ("B.4", ("cuda-graph-eager", "cuda-graph-replay"), "cuda-graph-comparison", ()),
        ("B.5", ("graph-fallback-eager", "graph-fallback-replay"), "graph-fallback-performance",
         ("--seqs", "17", "--max-num-seqs", "20")),
    ):  # fmt: skip
        for name, mode in zip(pair, (("--eager",), ()), strict=True):
            log = f"{settings.id(name)}.log"
            program = Program("scripts/labs/04_benchmark_engine.py", (*mode, *sizes, *shorter), log=log)
            yield replace(single(settings, name, section, 8, program), files=(log,))
        eager, replay = (settings.out(name, ".log") for name in pair)
        arguments = ("compare", "--variable", "eager", "--log", eager, "--other", replay)
        comparison = Program(ANALYZE, arguments, pending_on_cpu=True)
        yield replace(single(settings, result, section, 1, comparison), needs=pair)


def traces(settings: Settings) -> Iterable[Step]:
    for case, name in TRACED.items():
        log = f"{settings.id(name)}.log"
        program = Program("scripts/labs/03_trace_engine.py", ("--case", case, "--shapes"), log=log)
        yield Step(name, "B.2, B.3, B.6", 4, (program,), files=(log,))
    for block, (command, name) in CHECKS.items():
        program = Program(ANALYZE, (command, "--log", settings.out(name, ".log")))
        yield replace(single(settings, block, "B.2, B.3, B.6", 1, program), needs=(name,))


def cached_forward(settings: Settings) -> Iterable[Step]:
    for name, length in (("cached-forward", 64), ("cached-forward-128", 128)):
        sizes = ("--prompt-len", str(length), "--steps", "8", "--repeats", "1" if settings.quick else "3")
        log, check = f"{settings.id(name)}.log", f"{name}-check"
        program = Program("scripts/labs/02_cached_forward.py", sizes, log=log)
        yield replace(single(settings, name, "B.1.6", 7, program), files=(log,))
        checked = Program(ANALYZE, ("cache", "--log", settings.out(name, ".log")))
        yield replace(single(settings, check, "B.1.6", 1, checked), needs=(name,))


# ---- the service -----------------------------------------------------------------------------------------


def load(settings: Settings, log: str, *arguments: str) -> Program:
    return Program(RUN, ("load", "--trace", settings.trace, *arguments, "--out", settings.out(log, ".jsonl")))


def report(settings: Settings, name: str, logs: Iterable[str]) -> Program:
    inputs = ",".join(settings.out(log, ".jsonl") for log in logs)
    return Program(RUN, ("report", "--inputs", inputs, "--out", settings.out(name)))


def policies(settings: Settings) -> Iterable[Step]:
    """5.3 reads one run; 5.4.3 compares two policies, each run repeated."""
    first = (load(settings, "prefill-first"), report(settings, "prefill-first", ["prefill-first"]))
    yield Step("prefill-first", "5.3.1", 9, first, blocks=(settings.id("prefill-first"),))
    yield arrivals(settings)
    repeats = range(1, 2 if settings.quick else 4)
    logs = {p: [f"scheduler-{p}-{k}" for k in repeats] for p in ("prefill_first", "balanced")}
    programs = [load(settings, log, "--policy", policy) for policy, names in logs.items() for log in names]
    programs.append(report(settings, "scheduler-comparison", [log for names in logs.values() for log in names]))
    name, seconds = "scheduler-comparison", 10 * len(repeats) + 4
    yield Step(name, "5.4.3", seconds, tuple(programs), blocks=(settings.id(name),))


def arrivals(settings: Settings) -> Step:
    """5.3.2: eight requests at three distances; the same work, another load."""
    programs: list[Program] = []
    logs = [f"every-{ms}" for ms in (1000, 40, 5)]
    for log, distance in zip(logs, ("100" if settings.quick else "1000", "40", "5"), strict=True):
        trace = f"{{out}}/{log}.trace.jsonl"
        made = ("trace", "--requests", "8", "--max-tokens", "16", "--interval-ms", distance, "--seed", "17")
        programs += [
            Program(RUN, (*made, "--out", trace)),
            Program(RUN, ("load", "--trace", trace, "--out", settings.out(log, ".jsonl"))),
        ]
    programs.append(report(settings, "arrivals", logs))
    return Step("arrivals", "5.3.2", 20, tuple(programs), blocks=(settings.id("arrivals"),))


def execution(settings: Settings) -> Iterable[Step]:
    """5.5: a profile of a short run, then eager against graphs on one workload."""
    name, steps = "profile-eager", "8" if settings.quick else "40"
    log, directory = settings.out(name, ".jsonl"), settings.out(name, "")
    profiled = load(settings, name, "--profile-dir", directory, "--profile-steps", steps)
    arguments = ("--profile", directory, "--log", log, "--out", settings.out(name))
    view = Program("scripts/maintain/profile_view.py", arguments)
    yield Step(name, "5.5.1", 20, (profiled, view), blocks=(settings.id(name),))
    repeats = range(1, 2 if settings.quick else 4)
    logs = {f"execution-{mode}-{k}": f"--{mode}" for mode in ("eager", "graph") for k in repeats}
    programs = [load(settings, log, option) for log, option in logs.items()]
    programs.append(report(settings, "execution-comparison", logs))
    name, seconds = "execution-comparison", 14 * len(repeats) + 2
    yield Step(name, "5.5.2", seconds, tuple(programs), blocks=(settings.id(name),))


def service(settings: Settings) -> Iterable[Step]:
    """5.7: a client goes away in mid-stream; the server takes its blocks back and serves the next one."""
    client = ("client", "--endpoint", "{url0}", "--prompt", "Count from one to one hundred.")
    cancelled = (
        *client,
        "--max-tokens",
        "128",
        "--cancel-after",
        "4",
        "--out",
        settings.out("client-cancel", ".jsonl"),
    )
    after = (*client, "--request-id", "after", "--max-tokens", "8", "--out", settings.out("client-after", ".jsonl"))
    programs = (Program(RUN, cancelled), Program(RUN, after))
    server = Server(("--out", settings.out("server-cancel", ".jsonl")))
    files = tuple(f"{settings.id(name)}.jsonl" for name in ("client-cancel", "client-after", "server-cancel"))
    yield Step("server-cancel", "5.7.1", 24, programs, files=files, servers=(server,))
    name = "client-cancel"
    reported = report(settings, name, ["server-cancel"])
    yield Step(name, "5.7.1", 3, (reported,), blocks=(settings.id(name),), needs=("server-cancel",))


def multi_turn(settings: Settings) -> Step:
    return single(settings, "multi-turn", "B.7", 8, Program("scripts/labs/05_multi_turn.py"))


# ---- beside upstream, and kernel by kernel ---------------------------------------------------------------


def step_parts(settings: Settings) -> Step:
    program = Program("scripts/maintain/bench_step.py", ("--quick", "--steps", "4") if settings.quick else ())
    return single(settings, "bench-step", "B.4", 28, program)


def upstream(settings: Settings) -> Iterable[Step]:
    """The labs' programs drive a clone of upstream as they drive the engine here, each in a process of its own.

    Last, and beyond the ten minutes: upstream takes twenty seconds a process to start.
    """
    source = ("--source", "{upstream}")
    walk = Program("scripts/e2e/quick_walk.py", ("--case", "A", *source), alone=True, pending_on_cpu=True)
    forced = ("--backend", "nano", "--execution", "eager", *source)
    rows = Program(LOGITS, forced, alone=True, pending_on_cpu=True)
    generate = Program("scripts/labs/04_benchmark_engine.py", source, alone=True, pending_on_cpu=True)
    for step in (
        single(settings, "quick-A-upstream", "5.1.3", 20, walk),
        collect(settings, "engine-upstream", "5.2.5", 20, rows),
        compare(settings, "engine-logits-check-upstream", "5.2.5", ("engine-upstream", "engine-hf"), graph=False),
        single(settings, "benchmark-upstream", "B.4", 30, generate),
    ):
        yield replace(step, requires="upstream")


def engines(settings: Settings) -> Step:
    """The table of the targets; every engine runs in a process of its own."""
    program = Program(
        "scripts/maintain/bench_engines.py", ("--against", "{upstream}"), alone=True, pending_on_cpu=True, timeout_s=400
    )
    return replace(single(settings, "bench-engines", "B.4", 240, program), requires="upstream")


def kernels(settings: Settings) -> Step:
    program = Program(
        "scripts/maintain/bench_kernels.py", ("--budget", "150"), alone=True, pending_on_cpu=True, timeout_s=240
    )
    return single(settings, "bench-kernels", "B.4", 150, program)


def marked_tests() -> Step:
    """The tests that only a GPU can run; no block, but a failure is a failure of the run."""
    program = Program("-m", ("pytest", "-q", "-m", "gpu", "tests/numerics"), alone=True, expect=(0,))
    return Step("gpu-tests", "tests", 40, (program,))
