"""The formulas on logs written by hand, and serving.md's worked example."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanolab.report.build import load_runs
from nanolab.report.metrics import Slo, itl_ms, metrics_of, summarize, throughput_of, tpot_ms, ttft_ms
from nanolab.serving.events import Reason

from .helpers import client_life, engine_life, write


def records(tmp_path: Path, events: list, observer: str = "engine"):  # type: ignore[no-untyped-def, type-arg]
    return load_runs([write(tmp_path / "log.jsonl", events)])[0].records[observer]


def test_the_worked_example(tmp_path: Path) -> None:
    """Submitted at 0; tokens at 0.12, 0.16, 0.21, 0.25 s."""
    (record,) = records(tmp_path, engine_life("r", 0, 5, [120, 160, 210, 250]))
    assert ttft_ms(record) == 120
    assert itl_ms(record) == [40, 50, 40]
    assert tpot_ms(record) == pytest.approx(43.33, abs=0.005)


def test_queue_wait_is_the_engines(tmp_path: Path) -> None:
    found = metrics_of(records(tmp_path, engine_life("r", 10, 17.5, [20, 30])), Slo())
    assert found["queue_wait_ms"]["mean"] == 7.5
    assert found["e2e_ms"]["mean"] == 20


def test_client_latency_from_sent_and_from_planned(tmp_path: Path) -> None:
    found = metrics_of(records(tmp_path, client_life("r", 0, 3, [(10, 1), (20, 1)]), "client"), Slo())
    assert (found["ttft_ms"]["mean"], found["ttft_from_planned_ms"]["mean"]) == (7, 10)
    assert (found["e2e_ms"]["mean"], found["e2e_from_planned_ms"]["mean"]) == (17, 20)
    assert "queue_wait_ms" not in found


def test_itl_is_per_token_and_chunk_gap_per_chunk(tmp_path: Path) -> None:
    """Two tokens in the second chunk: per token 30 and 0; per chunk 30 and 20."""
    (record,) = records(tmp_path, client_life("r", 0, 0, [(10, 1), (40, 2), (60, 1)]), "client")
    assert itl_ms(record) == [30, 0, 20]
    found = metrics_of([record], Slo())
    assert found["chunk_gap_ms"]["n"] == 2
    assert tpot_ms(record) == pytest.approx(50 / 3)


def test_chunks_without_a_token_count_give_no_itl(tmp_path: Path) -> None:
    (record,) = records(tmp_path, client_life("r", 0, 0, [(10, None), (40, None)], total=5), "client")
    found = metrics_of([record], Slo())
    assert itl_ms(record) is None
    assert (found["itl_ms"], found["chunks_without_token_count"]) == ({"n": 0}, 2)
    assert found["chunk_gap_ms"]["mean"] == 30
    assert tpot_ms(record) == 30 / 4  # the server's own total is known


def test_one_token_has_no_tpot(tmp_path: Path) -> None:
    (record,) = records(tmp_path, engine_life("r", 0, 1, [5]))
    assert tpot_ms(record) is None
    assert metrics_of([record], Slo())["tpot_ms"] == {"n": 0}


def test_throughput_takes_the_common_window_with_its_tail(tmp_path: Path) -> None:
    events = [*engine_life("a", 0, 1, [100, 200]), *engine_life("b", 500, 501, [600, 1500, 2000])]
    assert throughput_of(records(tmp_path, events)) == {
        "window_s": 2.0,
        "output_tokens": 5,
        "tokens_per_s": 2.5,
        "requests_per_s": 1.0,
    }


def test_incomplete_requests_are_counted_and_keep_out_of_latency(tmp_path: Path) -> None:
    events = [
        *engine_life("good", 0, 1, [10, 20]),
        *engine_life("cancelled", 0, 1, [500, 900], Reason.CANCELLED),
        *engine_life("failed", 0, 1, [700], Reason.ERROR),
        *engine_life("unfinished", 0, 1, [800])[:-1],
    ]
    found = metrics_of(records(tmp_path, events), Slo())
    assert found["ends"] == {"cancelled": 1, "error": 1, "length": 1, "unfinished": 1}
    assert (found["output_tokens_complete"], found["output_tokens_other"]) == (2, 3)
    assert (found["ttft_ms"]["n"], found["ttft_ms"]["max"]) == (1, 10)


def test_slo_attainment_is_over_requests_sent(tmp_path: Path) -> None:
    events = [
        *client_life("quick", 0, 0, [(10, 1), (20, 1)]),
        *client_life("late first", 0, 0, [(90, 1), (95, 1)]),
        *client_life("slow", 0, 0, [(10, 1), (80, 1)]),
        *client_life("rejected", 0, 0, [], Reason.REJECTED),
    ]
    found = metrics_of(records(tmp_path, events, "client"), Slo(ttft_ms=50, tpot_ms=50))
    assert found["slo_attainment"] == 0.25
    assert "slo_attainment" not in metrics_of(records(tmp_path, events, "client"), Slo())


@pytest.mark.parametrize(("count", "given"), [(99, False), (100, True)])
def test_no_p99_under_100_samples(count: int, given: bool) -> None:
    assert (summarize(range(count))["p99"] is not None) is given


def test_summaries() -> None:
    assert summarize([]) == {"n": 0}
    assert summarize([None, 2.0, 4.0]) == {
        "n": 2,
        "mean": 3.0,
        "p50": 3.0,
        "p90": None,
        "p99": None,
        "min": 2.0,
        "max": 4.0,
    }
