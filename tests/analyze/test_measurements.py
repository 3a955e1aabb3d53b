"""Lab 02's and lab 04's logs: counts by arithmetic, and a comparison that refuses more than one difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from log_events import Event, benchmark, cached_forward, write

from nanolab import analyze
from nanolab.analyze import Findings, read_log
from nanolab.analyze.cached import position_counts
from nanolab.errors import LabError, MissingPrerequisite


def cache(tmp_path: Path, event: Event) -> Findings:
    return analyze.analyze_cache(read_log(write(tmp_path / "c.log", "text", event, "COLLECTED")))


def test_position_counts() -> None:
    assert position_counts(64, 8) == (540, 71)
    assert position_counts(128, 8) == (1052, 135)
    assert position_counts(5, 1) == (5, 5)


def test_cache_passes(tmp_path: Path) -> None:
    assert cache(tmp_path, cached_forward()).wrong == []


def test_other_lengths_have_their_own_counts(tmp_path: Path) -> None:
    config = {"prompt_len": 128, "steps": 8}
    right = cached_forward(config=config, positions_without_cache=1052, positions_with_cache=135)
    assert cache(tmp_path, right).wrong == []
    assert len(cache(tmp_path, cached_forward(config=config)).wrong) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"positions_without_cache": 539},
        {"positions_with_cache": 540},
        {"max_abs_logit_error": None},
        {"relative_l2_logit_error": float("nan")},
        {"max_abs_logit_error": float("inf")},
    ],
)
def test_cache_fails(tmp_path: Path, change: dict[str, Any]) -> None:
    assert len(cache(tmp_path, cached_forward(**change)).wrong) == 1


def test_speed_is_not_inferred_from_counts(tmp_path: Path) -> None:
    facts = cache(tmp_path, cached_forward()).facts
    assert not [name for name in facts if "speed" in name or "second" in name]


def test_a_log_without_the_measurement_names_the_lab(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"no cached_forward event.*02_cached_forward\.py"):
        analyze.analyze_cache(read_log(write(tmp_path / "c.log", "PENDING")))


# ---- compare --------------------------------------------------------------------------------------------


def compare(tmp_path: Path, first: Event, second: Event, variable: str = "eager") -> Findings:
    logs = [read_log(write(tmp_path / name, event)) for name, event in (("a.log", first), ("b.log", second))]
    return analyze.compare_benchmarks(logs[0], logs[1], variable)


EAGER, GRAPH = benchmark(True, [100.0, 110.0, 90.0]), benchmark(False, [400.0, 410.0, 390.0])


def test_ratio_is_graph_over_eager_in_either_order(tmp_path: Path) -> None:
    for pair in ((EAGER, GRAPH), (GRAPH, EAGER)):
        found = compare(tmp_path, *pair)
        assert found.wrong == []
        assert found.facts["throughput_ratio"] == pytest.approx(4.0)
        assert found.facts["sides"]["numerator"]["eager"] is False
        assert found.facts["sides"]["denominator"]["eager"] is True


def test_ratio_of_another_variable_is_other_over_log(tmp_path: Path) -> None:
    other = benchmark(False, [200.0, 200.0, 200.0], dtype="float32")
    assert compare(tmp_path, GRAPH, other, "dtype").facts["throughput_ratio"] == pytest.approx(0.5)


def slower_runs(event: Event) -> None:
    event["runs"][1]["output_tokens"] = 511


def other_engine(event: Event) -> None:
    event["engine"]["tree_sha256"] = "x" * 64


def other_model(event: Event) -> None:
    event["model"]["weights_sha256"] = "x" * 64


def other_device(event: Event) -> None:
    event["device"]["name"] = "another GPU"


def fewer_runs(event: Event) -> None:
    event["runs"].pop()


@pytest.mark.parametrize("spoil", [slower_runs, other_engine, other_model, other_device, fewer_runs])
def test_anything_else_that_differs_fails(tmp_path: Path, spoil: Any) -> None:
    graph = benchmark(False, [400.0, 410.0, 390.0])
    spoil(graph)
    assert compare(tmp_path, EAGER, graph).wrong


@pytest.mark.parametrize("setting", [{"input_len": 64}, {"dtype": "float32"}, {"attention_backend": "triton"}])
def test_a_second_setting_that_differs_fails(tmp_path: Path, setting: dict[str, Any]) -> None:
    found = compare(tmp_path, EAGER, benchmark(False, [400.0], **setting))
    assert next(iter(setting)) + " is the same" in [check.name for check in found.wrong]


def test_the_variable_must_differ(tmp_path: Path) -> None:
    found = compare(tmp_path, EAGER, EAGER)
    assert [check.name for check in found.wrong] == ["eager differs, being the variable"]


def test_counts_that_are_equally_wrong_fail(tmp_path: Path) -> None:
    short = [benchmark(eager, [100.0, 100.0, 100.0], output_len=64) for eager in (True, False)]
    assert [check.name for check in compare(tmp_path, *short).wrong] == ["output tokens of a round"]


def test_two_eager_runs_on_cpu_are_pending(tmp_path: Path) -> None:
    on_cpu = benchmark(True, [5.0])
    on_cpu["device"] = {"kind": "cpu", "name": "a CPU"}
    with pytest.raises(MissingPrerequisite, match="CUDA graphs need a CUDA device"):
        compare(tmp_path, on_cpu, on_cpu)


def test_an_unknown_variable_lists_the_settings(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"has no setting 'speed'.*eager"):
        compare(tmp_path, EAGER, GRAPH, "speed")
