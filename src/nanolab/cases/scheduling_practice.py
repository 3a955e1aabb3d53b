"""Section 5.4.2's scenarios: the baseline, the current default and `balanced`, side by side on the real scheduler.

A scenario adds named requests at given steps and runs to the end. The default must make exactly the baseline's steps;
`balanced` must change what it promises to change and nothing that correctness rests on. Step counts prove a mechanism;
how long a step takes is measured elsewhere, with a real model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from nanolab.cases.scheduling import MIDDLE_CANDIDATE, Engine, SchedulerBench, Step, slot_problems
from nanolab.errors import LabError

ENGINES = ("baseline", "default", "balanced")
STEP_LIMIT = 500


@dataclass(frozen=True)
class Request:
    name: str
    prompt_tokens: int
    max_tokens: int
    arrives: int = 0  # before the step of this number, counted from 0


@dataclass(frozen=True)
class Played:
    """One engine's run of one scenario."""

    steps: list[Step]
    outputs: dict[str, list[int]]
    problems: list[str]

    @property
    def phases(self) -> str:
        return "".join(step.phase[0].upper() for step in self.steps)

    def served(self, name: str) -> list[int]:
        """Numbers of the steps that gave `name` a token."""
        numbers, have = [], 0
        for number, step in enumerate(self.steps):
            if name in step.after and step.after[name][2] > have:
                numbers.append(number)
                have = step.after[name][2]
        return numbers

    def longest_gap(self, name: str) -> int:
        """Most steps between two consecutive tokens of `name`."""
        return max((later - earlier for earlier, later in pairwise(self.served(name))), default=0)


@dataclass(frozen=True)
class Scenario:
    name: str
    title_en: str
    title_zh: str
    sizes: dict[str, int]
    requests: tuple[Request, ...]
    judge: Callable[[dict[str, Played]], tuple[dict[str, Any], list[str]]]
    notes: tuple[str, ...] = field(default=())


def play(scenario: Scenario, engine: Engine) -> Played:
    """Run the scenario to its end, auditing the pool and the slots after every step."""
    bench = SchedulerBench(engine, **scenario.sizes)
    arrivals = sorted(scenario.requests, key=lambda request: request.arrives)
    problems: list[str] = []
    for number in range(STEP_LIMIT):
        while arrivals and arrivals[0].arrives <= number:
            request = arrivals.pop(0)
            start = 1000 * (len(bench.seqs) + 1)  # no two prompts share a prefix
            bench.add(request.name, range(start, start + request.prompt_tokens), request.max_tokens)
        if not bench.has_work():
            break
        step = bench.step()
        found = bench.problems() + slot_problems(step.blocks, step.before, bench.block_size, step.phase)
        problems += [f"step {number}: {problem}" for problem in found]
        if not step.before:
            problems.append(f"step {number}: nothing was scheduled although requests remain")
    else:
        raise LabError(
            f"scenario {scenario.name} does not end within {STEP_LIMIT} steps; some request never gets its turn"
        )
    return Played(bench.steps, {name: list(seq.completion_token_ids) for name, seq in bench.seqs.items()}, problems)


def common_differences(scenario: Scenario, played: dict[str, Played]) -> list[str]:
    """What must hold in every scenario, whatever the policy."""
    wrong: list[str] = []
    for number, (one, other) in enumerate(zip(played["baseline"].steps, played["default"].steps, strict=False)):
        if one != other:
            wrong.append(f"the default's step {number} is {other.row()}, the baseline's {one.row()}")
            break
    if len(played["baseline"].steps) != len(played["default"].steps):
        lengths = [len(played[name].steps) for name in ("default", "baseline")]
        wrong.append(f"the default takes {lengths[0]} steps, the baseline {lengths[1]}")
    for name, run in played.items():
        wrong += [f"{name}: {problem}" for problem in run.problems[:3]]
        for request in scenario.requests:
            if len(run.outputs[request.name]) != request.max_tokens:
                wrong.append(
                    f"{name}: {request.name} has {len(run.outputs[request.name])} of {request.max_tokens} tokens"
                )
            if MIDDLE_CANDIDATE in run.outputs[request.name]:
                wrong.append(f"{name}: {request.name} accepted the candidate of a middle prefill chunk")
        if run.steps[-1].free_blocks != scenario.sizes["num_blocks"]:
            wrong.append(f"{name}: {run.steps[-1].free_blocks} blocks are free at the end, not all of them")
    return wrong


# ---- the five scenarios ------------------------------------------------------------------------------------


def judge_long_prefill(played: dict[str, Played]) -> tuple[dict[str, Any], list[str]]:
    gaps = {name: max(run.longest_gap("S1"), run.longest_gap("S2")) for name, run in played.items()}
    first = {name: run.served("L")[0] for name, run in played.items()}
    wrong = []
    if gaps["default"] <= 5:
        wrong.append(f"the default should keep the short requests waiting for the long prompt's 5 chunks, saw {gaps}")
    if gaps["balanced"] != 2:
        wrong.append(f"balanced should serve a running request at least every second step, saw {gaps['balanced']}")
    if first["balanced"] <= first["default"]:
        wrong.append("balanced should make the long prompt pay: its first token must come later than by default")
    return {"longest_gap_of_short": gaps, "first_token_step_of_long": first}, wrong


def judge_rotation(played: dict[str, Played]) -> tuple[dict[str, Any], list[str]]:
    names = {f"R{number}" for number in range(1, 7)}
    reached = {name: served_in_a_row(run, names, 3) for name, run in played.items()}
    wrong = []
    if reached["default"] != ["R1", "R2"]:
        wrong.append(f"by default the first two keep both places; three decode steps served {reached['default']}")
    if set(reached["balanced"]) != names:
        wrong.append(f"balanced must reach all six in three decode steps of two, it served {reached['balanced']}")
    return {"served_by_three_decode_steps": reached}, wrong


def served_in_a_row(run: Played, names: set[str], count: int) -> list[str]:
    """Who is served by the first `count` decode steps after all of `names` are running."""
    start = next(number for number, step in enumerate(run.steps) if names <= set(step.running)) + 1
    decodes = [step for step in run.steps[start:] if step.phase == "decode"][:count]
    return sorted({name for step in decodes for name in step.before})


def judge_chunks(played: dict[str, Played]) -> tuple[dict[str, Any], list[str]]:
    chunks = {name: [s.before["L"][2] for s in run.steps if s.phase == "prefill"] for name, run in played.items()}
    outputs = {name: run.served("L") for name, run in played.items()}
    wrong = [
        f"{name}: chunks {sizes}, expected [8, 8, 8, 6]" for name, sizes in chunks.items() if sizes != [8, 8, 8, 6]
    ]
    wrong += [f"{name}: first output in step {at[0]}, expected 3" for name, at in outputs.items() if at[0] != 3]
    return {"chunks": chunks, "steps_with_output": outputs}, wrong


def judge_short_of_kv(played: dict[str, Played]) -> tuple[dict[str, Any], list[str]]:
    """The preferred phase is often impossible here; the other one must take the step."""
    blocked = {}
    wrong = []
    for name, run in played.items():
        pairs = [(one, two) for one, two in pairwise(run.steps) if one.phase == two.phase == "decode" and two.waiting]
        blocked[name] = len(pairs)
        if not pairs:
            wrong.append(f"{name}: no decode step followed another while a request waited for blocks")
    return {
        "decodes_while_prefill_lacks_blocks": blocked,
        "phases": {n: run.phases for n, run in played.items()},
    }, wrong


def judge_reclamation(played: dict[str, Played]) -> tuple[dict[str, Any], list[str]]:
    free = {name: [step.free_blocks for step in run.steps] for name, run in played.items()}
    wrong = []
    for name, run in played.items():
        for one, two in pairwise(run.steps):
            ended = [who for who, state in two.after.items() if state[3] == "FINISHED"]
            if ended and two.free_blocks <= one.free_blocks - len(two.before):
                wrong.append(f"{name}: {ended} ended and no block came back")
    return {"free_blocks": free}, wrong


SMALL = {"block_size": 4, "num_blocks": 64, "max_num_batched_tokens": 8, "max_num_seqs": 8}
SCENARIOS = (
    Scenario(
        "long-prefill", "A long prompt arrives while short ones decode", "短请求正在生成时来了一个长提示", SMALL,
        (Request("S1", 4, 12), Request("S2", 4, 12), Request("L", 40, 2, arrives=3)), judge_long_prefill,
    ),
    Scenario(
        "rotation", "Six sequences await decode, a batch holds two", "六个序列等待生成，一批只容两个",
        SMALL | {"max_num_seqs": 2}, tuple(Request(f"R{n}", 4, 8) for n in range(1, 7)), judge_rotation,
    ),
    Scenario(
        "chunks", "Candidates of middle chunks are discarded", "中间分块的候选被丢弃", SMALL,
        (Request("L", 30, 3),), judge_chunks,
    ),
    Scenario(
        "short-of-kv", "A prefill that lacks blocks gives way to decode", "缺块的 prefill 让位给 decode",
        SMALL | {"num_blocks": 5}, tuple(Request(f"R{n}", 7, 6) for n in range(1, 5)), judge_short_of_kv,
    ),
    Scenario(
        "reclamation", "Blocks come back as requests end", "请求结束时块被收回", SMALL | {"num_blocks": 12},
        tuple(Request(f"R{n}", 4 + n, 3 * n) for n in range(1, 5)), judge_reclamation,
    ),
)  # fmt: skip


def compare(scenario: Scenario, engines: dict[str, Engine]) -> tuple[dict[str, Any], list[str]]:
    """The facts of one scenario on all three engines, and everything that is not as it must be."""
    played = {name: play(scenario, engine) for name, engine in engines.items()}
    facts, wrong = scenario.judge(played)
    facts |= {
        "phases": {name: run.phases for name, run in played.items()},
        "steps": {name: [step.row() for step in run.steps] for name, run in played.items() if name != "default"},
        "default_equals_baseline": played["default"].steps == played["baseline"].steps,
    }
    wrong = common_differences(scenario, played) + wrong
    return facts, [f"{scenario.name}: {line}" for line in wrong]
