"""Teacher-forced collection on the real engine: rows, routes, KV checks, and faults that must be seen."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stand_in_graphs import StandInGraph, give_graphs

from nanolab import numerics, sources
from nanolab.numerics.compare import errors
from nanolab.numerics.suites import IDENTITY

ROOT = Path(__file__).resolve().parents[2]
BASELINE, GRAPH = numerics.SUITES["baseline"], numerics.SUITES["graph"]
SIZES = [1, 2, 4, 8, 16]


def test_engine_follows_the_trajectory_that_the_reference_recomputes(engine_run: Any, reference_run: Any) -> None:
    left, right = engine_run(), reference_run()
    assert len(left.rows) == len(right.rows) == 15
    for ours, theirs in zip(left.rows, right.rows, strict=True):
        assert {name: ours[name] for name in IDENTITY} == {name: theirs[name] for name in IDENTITY}
    assert [row["position"] for row in left.rows] == [2, 3, 4, 2, 3, 3, 4, 5, 6, 7, 255, 256, 257, 699, 31]


@pytest.mark.parametrize(("dtype", "max_abs", "rel_l2"), [("float32", 1e-3, 1e-4), ("bfloat16", 0.5, 0.02)])
def test_engine_agrees_with_the_reference(
    engine_run: Any, reference_run: Any, dtype: str, max_abs: float, rel_l2: float
) -> None:
    left, right = engine_run(dtype=dtype), reference_run(dtype)
    for a, b in zip(left.logits, right.logits, strict=True):
        worst = errors(a, b)
        assert worst[0] <= max_abs
        assert worst[1] <= rel_l2
        assert a.argmax() == b.argmax()


def test_steps_of_the_baseline(engine_run: Any) -> None:
    run = engine_run()
    shapes = {g.name: [(s["phase"][0], s["batch"], s["positions"]) for s in g.steps] for g in run.groups}
    assert shapes["A"] == [("p", 1, 3), ("d", 1, 1), ("d", 1, 1)]
    assert shapes["D"] == [("p", 1, 512), ("p", 2, 220)], "the middle chunk gives no row, and D ends after its prompts"
    facts = run.facts()
    assert facts["history_unchanged"]
    assert facts["others_unchanged"]
    assert facts["padding_safe"]
    assert facts["buckets"] == []
    assert {s["route"] for g in run.groups for s in g.steps} == {"eager"}


def test_graph_suite_eagerly(engine_run: Any) -> None:
    run = engine_run("graph")
    assert len(run.rows) == 126
    assert run.facts()["routes"] == dict.fromkeys(["1", "9", "16", "17", "20"], "eager")
    assert [[s["batch"] for s in g.steps] for g in run.groups] == [[n, n] for n in (1, 9, 16, 17, 20)]
    assert np.stack(run.kv).shape == (126, 4, 2, 2, 64)
    assert all(np.abs(kv).max() > 0 for kv in run.kv)


def test_every_case_starts_without_cached_blocks(engine_run: Any) -> None:
    for suite in ("baseline", "graph"):
        first = [row for row in engine_run(suite).rows if row["round"] == 1]
        assert {row["cached"] for row in first if row["tokens"] <= 512} == {0}


def test_the_probes_leave_no_trace(tiny_model: Path) -> None:
    replay = torch.cuda.CUDAGraph.replay
    options = BASELINE.engine_options() | {"dtype": "float32"}
    with sources.resolve(ROOT / "src").create_engine(tiny_model, **options) as driver:
        numerics.collect_engine(driver, BASELINE)
        assert not driver.engine.model_runner.model.model.embed_tokens._forward_pre_hooks
        assert driver.engine.requests == {}
    assert torch.cuda.CUDAGraph.replay is replay


# ---- graphs ---------------------------------------------------------------------------------------------


def test_routes_are_recorded_from_what_ran(graph_driver: Any, engine_run: Any) -> None:
    give_graphs(graph_driver, SIZES)
    run = numerics.collect_engine(graph_driver, GRAPH, keep_kv=True)
    facts = run.facts()
    assert facts["buckets"] == SIZES
    assert facts["routes"] == {"1": "graph 1", "9": "graph 16", "16": "graph 16", "17": "eager", "20": "eager"}
    decodes = {g.name: g.steps[1] for g in run.groups}
    assert {name: step["padding_rows"] for name, step in decodes.items()} == {"1": 0, "9": 7, "16": 0, "17": 0, "20": 0}
    assert facts["padding_safe"]
    assert facts["others_unchanged"]
    eager = engine_run("graph")
    assert max(errors(a, b)[0] for a, b in zip(run.logits, eager.logits, strict=True)) < 1e-3
    assert max(errors(a, b)[0] for a, b in zip(run.kv, eager.kv, strict=True)) < 1e-4


def test_configuration_is_not_taken_for_a_route(graph_driver: Any) -> None:
    """An engine that says it replays, but calls the model, is seen to call the model."""
    give_graphs(graph_driver, SIZES)
    runner = graph_driver.engine.model_runner
    runner.decode_graphs.replay = lambda size, num_seqs: runner.forward(runner.step_buffer.device_inputs(header(size)))

    def header(size: int) -> Any:
        header_class = graph_driver.source.module("engine.step_buffer").StepHeader
        return header_class(False, size, size, 1, 1024, runner.step_buffer.decode_layout.width, 0)

    run = numerics.collect_engine(graph_driver, dataclasses.replace(GRAPH, groups=GRAPH.groups[:1]))
    assert run.facts()["routes"] == {"1": "eager"}


def test_a_graph_that_the_engine_does_not_list_is_seen(graph_driver: Any) -> None:
    give_graphs(graph_driver, SIZES)
    graphs = graph_driver.engine.model_runner.decode_graphs
    stranger = StandInGraph()
    stranger.captured = graphs.graphs[1].captured
    own_replay = graphs.replay

    def replay(size: int, num_seqs: int) -> Any:
        stranger.replay()
        return own_replay(size, num_seqs)

    graphs.replay = replay
    run = numerics.collect_engine(graph_driver, dataclasses.replace(GRAPH, groups=GRAPH.groups[:1]))
    assert run.facts()["routes"] == {"1": "graph None + graph 1"}


def spoil(field: str, value: int) -> Any:
    """A replay whose padded rows carry `value`, as a forgotten reset would leave them."""

    def fault(inputs: Any) -> Any:
        if inputs.num_seqs == 16:
            getattr(inputs, field)[9:] = value
        return inputs

    return fault


def test_a_padded_row_that_writes_is_caught(graph_driver: Any) -> None:
    """Slot 0 instead of -1: the padded row overwrites the first request's first position."""
    give_graphs(graph_driver, SIZES, spoil("slot_mapping", 0))
    run = numerics.collect_engine(graph_driver, dataclasses.replace(GRAPH, groups=GRAPH.groups[1:2]))
    assert not run.facts()["history_unchanged"]


def test_a_padded_row_that_writes_elsewhere_is_caught(graph_driver: Any) -> None:
    give_graphs(graph_driver, SIZES, spoil("slot_mapping", 23 * 256 + 5))
    run = numerics.collect_engine(graph_driver, dataclasses.replace(GRAPH, groups=GRAPH.groups[1:2]))
    assert run.facts()["history_unchanged"]
    assert not run.facts()["others_unchanged"]


@pytest.mark.parametrize(("field", "value"), [("slot_mapping", 3), ("context_lens", 1)])
def test_unsafe_padding_metadata_is_caught(graph_driver: Any, field: str, value: int) -> None:
    """What the replay is about to read, not what it then does."""
    give_graphs(graph_driver, SIZES)
    runner = graph_driver.engine.model_runner
    prepare = runner.prepare_decode

    def unsafe(seqs: Any) -> Any:
        inputs = prepare(seqs)
        header_class = graph_driver.source.module("engine.step_buffer").StepHeader
        width = runner.step_buffer.decode_layout.width
        rows = runner.step_buffer.device_inputs(header_class(False, 16, 16, 1, 1024, width, 0))
        rows.block_tables[12] = 0  # a row that is read after all must name a block that exists
        getattr(rows, field)[12] = value
        return inputs

    runner.prepare_decode = unsafe
    run = numerics.collect_engine(graph_driver, dataclasses.replace(GRAPH, groups=GRAPH.groups[1:2]))
    assert not run.facts()["padding_safe"]


# ---- the red run of B.5 ---------------------------------------------------------------------------------


def remove_fallback(driver: Any) -> None:
    """The baseline's lookup: a bucket, or StopIteration."""
    runner = driver.engine.model_runner

    def run_model(inputs: Any) -> Any:
        if inputs.is_prefill:
            return runner.forward(inputs)
        return runner.decode_graphs.replay(next(s for s in runner.graph_bs if s >= inputs.num_seqs), inputs.num_seqs)

    runner.run_model = run_model


def test_the_missing_bucket_is_the_expected_failure(graph_driver: Any) -> None:
    give_graphs(graph_driver, SIZES)
    remove_fallback(graph_driver)
    run = numerics.collect_engine(graph_driver, GRAPH, stop_at_fault=True)
    seen, line, facts = numerics.judge_uncovered(run, GRAPH)
    assert seen
    assert facts["expected_failure"] is True
    assert facts["fault"] == {"type": "StopIteration", "message": "", "group": "17", "phase": "decode", "batch": 17}
    assert facts["routes"] == {"1": "graph 1", "9": "graph 16", "16": "graph 16"}
    assert "decode batch 17, largest captured graph 16" in line


def test_a_repaired_engine_is_told_so(graph_driver: Any) -> None:
    give_graphs(graph_driver, SIZES)
    run = numerics.collect_engine(graph_driver, GRAPH, stop_at_fault=True)
    seen, line, facts = numerics.judge_uncovered(run, GRAPH)
    assert not seen
    assert facts["fault"] is None
    assert "did not occur" in line
    assert "this engine is repaired" in line


@pytest.mark.parametrize("batch", [17, 9])
def test_another_failure_is_not_the_expected_one(graph_driver: Any, batch: int) -> None:
    give_graphs(graph_driver, SIZES)
    runner = graph_driver.engine.model_runner
    own = runner.run_model

    def run_model(inputs: Any) -> Any:
        if not inputs.is_prefill and inputs.num_seqs == batch:
            raise StopIteration if batch == 9 else RuntimeError("out of memory")
        return own(inputs)

    runner.run_model = run_model
    run = numerics.collect_engine(graph_driver, GRAPH, stop_at_fault=True)
    seen, line, _ = numerics.judge_uncovered(run, GRAPH)
    assert not seen
    assert "another failure than the expected one" in line


def test_an_unexpected_exception_is_not_swallowed(graph_driver: Any) -> None:
    def run_model(inputs: Any) -> Any:
        raise RuntimeError("boom")

    graph_driver.engine.model_runner.run_model = run_model
    with pytest.raises(RuntimeError, match="boom"):
        numerics.collect_engine(graph_driver, GRAPH)
