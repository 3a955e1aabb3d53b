"""Plays the plan: what is still to do, in which order, within a time; a step that fails stops no other.

A step is done when its blocks are in the output directory, valid, current and of this run's evidence type. A step
whose own block is current runs again if one that reads its files does not find them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click

from nanolab import evidence
from nanolab.gpu_evidence.host import Host
from nanolab.gpu_evidence.processes import ServerProcess, Worker, run_alone
from nanolab.gpu_evidence.step import RUN, Program, Step
from nanolab.verdicts import EvidenceType, Verdict

__all__ = ["Outcome", "Run", "select"]

GRACE_S = 20.0  # a step that was begun in time may run this much over


@dataclass
class Outcome:
    """`state`: done, current (nothing to do), failed, pending (on CPU), or not run."""

    step: Step
    state: str
    checks: list[str] = field(default_factory=list)
    seconds: float = 0.0
    reason: str = ""

    def line(self) -> str:
        shown = (
            "/".join(dict.fromkeys(self.checks)) if self.checks and self.state in ("done", "current") else self.state
        )
        reason = f"  {self.reason}" if self.reason else ""
        return f"{shown:10} {self.seconds:6.1f} s  {self.step.section:6} {self.step.name}{reason}"


@dataclass
class Run:
    root: Path
    out: Path
    model: Path
    host: Host
    budget_s: float
    upstream: Path | None = None
    baseline: Path | None = None
    why_no_baseline: str = ""
    say: Callable[[str], None] = click.echo
    after_step: Callable[[], None] = lambda: None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        environment = self.host.environment(self.root, self.model)
        self.worker = Worker(self.root, environment, self.out / "logs" / "worker.err")

    @property
    def on_gpu(self) -> bool:
        return bool(self.host.gpus)

    @property
    def time_left(self) -> float:
        return self.budget_s - (time.monotonic() - self.started)

    # ---- what is to do -----------------------------------------------------------------------------------

    def play(self, plan: Sequence[Step]) -> list[Outcome]:
        todo = self.todo(plan)
        try:
            for number, step in enumerate(plan, 1):
                if not any(name in todo for name in (other.name for other in plan[number - 1 :] if uses_worker(other))):
                    self.worker.close()  # what is left measures alone: the GPU is theirs
                outcome = self.one(step, step.name in todo)
                self.outcomes[step.name] = outcome
                self.say(f"[{number:2}/{len(plan)}] {time.monotonic() - self.started:5.0f} s  {outcome.line()}")
                if step.name in todo:
                    self.after_step()
        finally:
            self.worker.close()
        return list(self.outcomes.values())

    def todo(self, plan: Sequence[Step]) -> set[str]:
        """Names of the steps that must run; `plan` is in an order in which needs come first."""
        steps = {step.name: step for step in plan}
        read = {name for step in plan for name in step.needs}
        names = {step.name for step in plan if not self.is_current(step, step.name in read)}
        for step in reversed(plan):
            if step.name in names:
                needed = [steps[name] for name in step.needs if name in steps]
                names.update(need.name for need in needed if not need.blocks or not self.has_files(need))
        return names

    def is_current(self, step: Step, has_readers: bool) -> bool:
        """A step that leaves files only runs when a reader of them does, so that they are never old."""
        if not step.blocks:
            return has_readers
        return all(self.check_of(block) is not None for block in step.blocks)

    def has_files(self, step: Step) -> bool:
        return all((self.out / name).is_file() for name in step.files)

    def check_of(self, block_id: str) -> str | None:
        """The verdict of a current block of this run's kind; None when there is none."""
        path = self.out / f"{block_id}.json"
        if not path.is_file():
            return None
        try:
            block = evidence.load(path)
        except click.ClickException:
            return None
        if block["check"] == Verdict.PENDING.value or evidence.is_stale(block, self.root):
            return None
        if (block["evidence"] == EvidenceType.GPU.value) != self.on_gpu:
            return None
        return str(block["check"])

    # ---- one step ----------------------------------------------------------------------------------------

    def one(self, step: Step, wanted: bool) -> Outcome:
        if not wanted:
            return Outcome(step, "current", [str(self.check_of(block)) for block in step.blocks])
        if reason := self.obstacle(step):
            return Outcome(step, "not run", reason=reason)
        begun = time.monotonic()
        try:
            state, reason = self.execute(step)
        except OSError as error:
            state, reason = "failed", str(error)
        checks = {block: self.check_of(block) for block in step.blocks}
        missing = [block for block, check in checks.items() if check is None]
        if state == "done" and missing:
            state, reason = "failed", f"it left no current block {missing[0]}.json"
        return Outcome(step, state, [check for check in checks.values() if check], time.monotonic() - begun, reason)

    def obstacle(self, step: Step) -> str:
        """Why this step cannot run here and now; empty when it can."""
        failed = [name for name in step.needs if self.outcomes[name].state not in ("done", "current")]
        if failed and self.on_gpu:
            return f"needs {', '.join(failed)}"
        if self.on_gpu and len(self.host.gpus) < step.gpus:
            return f"needs {step.gpus} GPUs, {len(self.host.gpus)} visible"
        if step.requires == "flash_attn" and not self.host.flash_attn:
            return "flash-attn is not installed" if self.on_gpu else "flash-attn needs a GPU"
        if step.requires == "upstream" and self.upstream is None:
            return "no upstream clone: give --upstream DIR"
        if step.requires == "baseline" and self.baseline is None:
            return f"no baseline: {self.why_no_baseline}"
        if step.seconds > self.time_left:
            return f"out of time: takes about {step.seconds:.0f} s, {max(self.time_left, 0):.0f} s are left"
        return ""

    def execute(self, step: Step) -> tuple[str, str]:
        """(state, reason)"""
        out, err = (self.out / "logs" / f"{step.name}.{kind}" for kind in ("txt", "err"))
        for path in (out, err, *(self.out / program.log for program in step.programs if program.log)):
            path.unlink(missing_ok=True)
        places = {"out": self.out.as_posix(), "upstream": str(self.upstream), "baseline": str(self.baseline)}
        if self.out.is_relative_to(self.root):
            places["out"] = self.out.relative_to(self.root).as_posix()
        state, reason = "done", ""
        with ExitStack() as stack:
            servers = [self.serve(server.arguments, server.gpus, places, out, err) for server in step.servers]
            for server in servers:
                stack.callback(server.stop)
            for index, server in enumerate(servers):
                places[f"url{index}"] = server.url() or ""
                if not places[f"url{index}"]:
                    return "failed", f"the server did not start: {last_line(err)}"
            for program in step.programs:
                code = self.run_program(program, places, out, err, step.gpus)
                if code in program.expect:
                    continue
                if not self.on_gpu and program.pending_on_cpu and code in (1, 2, 4):
                    state = "pending"
                    continue
                return "failed", f"{program.script} ended with {code}: {last_line(err) or last_line(out)}"
            codes = [server.stop() for server in servers]
            if any(codes):
                return "failed", f"the server ended with {codes}: {last_line(err)}"
        return state, reason

    def run_program(self, program: Program, places: dict[str, str], out: Path, err: Path, gpus: int) -> int:
        arguments = [fill(argument, places) for argument in program.arguments]
        stdout = self.out / program.log if program.log else out
        timeout = min(program.timeout_s, max(self.time_left, 0) + GRACE_S)
        if not program.alone:
            return self.worker.run(program.script, arguments, stdout, err, timeout)
        environment = self.host.environment(self.root, self.model, ",".join(map(str, range(gpus))))
        command = [sys.executable, program.script, *arguments]
        return run_alone(command, self.root, environment, stdout, err, timeout)

    def serve(self, arguments: Sequence[str], gpus: str, places: dict[str, str], out: Path, err: Path) -> ServerProcess:
        command = [sys.executable, RUN, "serve", "--port", "0", *(fill(argument, places) for argument in arguments)]
        log = out.with_name(f"{out.stem}-server-{gpus.replace(',', '-')}.txt")
        log.unlink(missing_ok=True)
        return ServerProcess(command, self.root, self.host.environment(self.root, self.model, gpus), log, err)


def fill(argument: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        argument = argument.replace(f"{{{name}}}", value)
    return argument


def uses_worker(step: Step) -> bool:
    return any(not program.alone for program in step.programs)


def last_line(path: Path, width: int = 200) -> str:
    """The last words of a log, where a program says what went wrong."""
    if not path.is_file():
        return ""
    lines = [line.strip() for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith("[transformers]")]
    return telling[-1][:width] if telling else ""


def select(plan: Sequence[Step], only: Sequence[str]) -> list[Step]:
    """The steps of these names, in the plan's order, with the steps whose files they read."""
    if not only:
        return list(plan)
    known = {step.name: step for step in plan}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise click.UsageError(f"no step is called {', '.join(unknown)}; --list shows them all")
    wanted, queue = set(only), list(only)
    while queue:
        queue += [name for name in known[queue.pop()].needs if name not in wanted]
        wanted.update(queue)
    return [step for step in plan if step.name in wanted]
