"""Each patch's acceptance: red on the baseline, green with the patch, and by default nothing else changes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nanolab.cases import scheduling_practice
from nanolab.cases.scheduling import Engine, alias_of
from nanolab.errors import LabError
from nanolab.sources import EngineSource

from .conftest import Variant

TRACES = Path(__file__).parent.parent / "data" / "upstream-scheduler-traces.jsonl.gz"
OPTIONS: dict[str, Any] = {
    "device": "cpu", "max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 8,
    "kvcache_block_size": 16, "num_kvcache_blocks": 32,
}  # fmt: skip


def load(source: EngineSource, name: str) -> Any:
    return source.isolated(alias_of(source), name)


# ---- 01 ----------------------------------------------------------------------------------------------------


def traced_case_a(source: EngineSource, model: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Run case A and return the JSON lines it printed."""
    engine = load(source, "engine.llm_engine").LLMEngine(str(model), **OPTIONS)
    try:
        params = load(source, "sampling_params").SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        engine.generate([[11, 12, 13]], params, use_tqdm=False)
    finally:
        engine.exit()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(("patched", "value", "expected"), [
    (False, "1", 0), (True, "1", 3), (True, "0", 0), (True, "true", 0), (True, "", 0), (True, None, 0),
])  # fmt: skip
def test_01_prints_three_lines_for_case_a_and_only_when_asked(
    variant: Variant, tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    patched: bool, value: str | None, expected: int,
) -> None:  # fmt: skip
    monkeypatch.delenv("NANO_LAB_TRACE", raising=False)
    if value is not None:
        monkeypatch.setenv("NANO_LAB_TRACE", value)
    lines = traced_case_a(variant("01") if patched else variant(), tiny_model, capsys)
    assert len(lines) == expected
    if expected:
        assert all(line["event"] == "engine_step" and len(line["seqs"]) == 1 for line in lines)
        assert [line["phase"] for line in lines] == ["prefill", "decode", "decode"]
        counts = [[line["seqs"][0][name] for name in ("total", "cached", "scheduled")] for line in lines]
        assert counts == [[3, 0, 3], [4, 3, 1], [5, 4, 1]]


# ---- 02 ----------------------------------------------------------------------------------------------------


def routes(source: EngineSource, batches: list[int]) -> list[str]:
    """What `run_model` does with decode batches if max_num_seqs is 20: replay a graph of some size, or run eagerly."""
    runner_module = load(source, "engine.model_runner")
    runner = object.__new__(runner_module.ModelRunner)
    runner.enforce_eager = False
    runner.graph_bs = load(source, "engine.cuda_graph").graph_sizes(20)
    runner.decode_graphs = SimpleNamespace(replay=lambda size, num_seqs: f"{num_seqs}->{size}")
    runner.forward = lambda inputs: f"{inputs.num_seqs}->eager"
    return [runner.run_model(SimpleNamespace(is_prefill=False, num_seqs=batch)) for batch in batches]


def test_02_before_a_batch_of_17_has_no_graph(variant: Variant) -> None:
    assert routes(variant(), [1, 9, 16]) == ["1->1", "9->16", "16->16"]
    with pytest.raises(StopIteration):
        routes(variant(), [17])


def test_02_after_it_runs_eagerly_and_the_others_are_replayed_as_before(variant: Variant) -> None:
    assert routes(variant("02"), [1, 9, 16, 17, 20, 513]) == [
        "1->1", "9->16", "16->16", "17->eager", "20->eager", "513->eager",
    ]  # fmt: skip


# ---- 03 ----------------------------------------------------------------------------------------------------


def three_engines(baseline: EngineSource, current: EngineSource) -> dict[str, Engine]:
    return {
        "baseline": Engine.of(baseline, beside=True),
        "default": Engine.of(current, beside=True),
        "balanced": Engine.of(current, "balanced", beside=True),
    }


def test_03_before_there_is_no_balanced_policy_and_the_message_names_the_patch(variant: Variant) -> None:
    with pytest.raises(LabError, match="03-fair-scheduler"):
        Engine.of(variant(), "balanced", beside=True)


@pytest.mark.parametrize("scenario", scheduling_practice.SCENARIOS, ids=lambda scenario: scenario.name)
def test_03_after_all_five_scenarios_hold(variant: Variant, scenario: scheduling_practice.Scenario) -> None:
    _, wrong = scheduling_practice.compare(scenario, three_engines(variant(), variant("03")))
    assert wrong == []


@pytest.mark.parametrize("name", ["long-prefill", "rotation"])
def test_03_the_default_policy_would_not_pass_as_balanced(variant: Variant, name: str) -> None:
    """The scenarios can fail: the baseline's own scheduling in the place of `balanced` is caught."""
    scenario = next(each for each in scheduling_practice.SCENARIOS if each.name == name)
    engines = three_engines(variant(), variant("03"))
    _, wrong = scheduling_practice.compare(scenario, engines | {"balanced": engines["default"]})
    assert wrong


# ---- 04 (its processes are in test_ranks.py) -------------------------------------------------------------------


def test_04_before_an_engine_has_no_address_of_its_own(variant: Variant, tiny_model: Path) -> None:
    with pytest.raises(ValueError, match="unknown option dist_init_method, shm_name"):
        load(variant(), "config").Config.create(tiny_model, dist_init_method="tcp://127.0.0.1:29501", shm_name="a")
    assert "04-replica-isolation" in str(variant().missing_option("shm_name"))


def test_04_after_it_has_and_a_bad_one_is_refused(variant: Variant, tiny_model: Path) -> None:
    create = load(variant("04"), "config").Config.create
    assert create(tiny_model).dist_init_method == "tcp://127.0.0.1:2333"
    assert create(tiny_model, shm_name="nano_replica_a").shm_name == "nano_replica_a"
    for wrong in (
        {"dist_init_method": "127.0.0.1:29501"},
        {"dist_init_method": "env://"},
        {"shm_name": "a/b"},
        {"shm_name": ""},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            create(tiny_model, **wrong)


# ---- default behaviour ---------------------------------------------------------------------------------------


def workloads() -> Iterator[dict[str, Any]]:
    with gzip.open(TRACES, "rt") as lines:
        yield from map(json.loads, lines)


def replay(source: EngineSource, workload: dict[str, Any]) -> int:
    """Play one recorded workload; every field of every step must be the recorded one."""
    recorded = workload["config"]
    config = SimpleNamespace(
        max_num_seqs=recorded["max_num_seqs"], max_num_batched_tokens=recorded["max_num_batched_tokens"],
        eos=(recorded["eos"],), num_kvcache_blocks=recorded["num_blocks"], kvcache_block_size=recorded["block_size"],
        scheduling_policy="prefill_first",
    )  # fmt: skip
    scheduler = load(source, "engine.scheduler").Scheduler(config)
    params_class, sequence_class = (
        load(source, "sampling_params").SamplingParams,
        load(source, "engine.sequence").Sequence,
    )
    arrivals = list(enumerate(workload["requests"]))
    for step in workload["steps"]:
        while arrivals and step["clock"] >= arrivals[0][1]["arrive"]:
            number, request = arrivals.pop(0)
            params = params_class(max_tokens=request["max_tokens"], ignore_eos=request["ignore_eos"])
            scheduler.add(sequence_class(number, request["prompt"], params, recorded["block_size"]))
        seqs, is_prefill = scheduler.schedule()
        batch = [[s.seq_id, s.num_tokens, s.num_cached_tokens, s.num_scheduled_tokens, s.block_table] for s in seqs]
        assert [("prefill" if is_prefill else "decode"), batch] == [step["phase"], step["batch"]]
        scheduler.postprocess(seqs, step["sampled"], is_prefill)
        after = [
            [s.seq_id, s.num_tokens, s.num_cached_tokens, s.num_completion_tokens, s.status.name, s.block_table]
            for s in seqs
        ]
        queues = [[s.seq_id for s in queue] for queue in (scheduler.waiting, scheduler.running)]
        free = len(scheduler.block_manager.free_block_ids)
        assert [after, *queues, free] == [step["after"], step["waiting"], step["running"], step["free"]]
    assert scheduler.is_finished() and not arrivals
    return len(workload["steps"])


@pytest.mark.parametrize("patches", ["", "01", "02", "03", "04", "01 02 03 04"], ids=lambda value: value or "baseline")
def test_default_steps_are_the_recorded_ones(variant: Variant, patches: str) -> None:
    source = variant(*patches.split())
    assert sum(replay(source, workload) for workload in workloads()) > 10_000


def test_patches_without_scheduling_leave_the_schedulers_bytes_alone(variant: Variant) -> None:
    for number in ("01", "02", "04"):
        for file in ("scheduler", "block_manager", "sequence"):
            name = f"nanoengine/engine/{file}.py"
            assert (variant(number).root / name).read_bytes() == (variant().root / name).read_bytes()
