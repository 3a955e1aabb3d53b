"""Routing is explainable and reproducible: the decision follows from the numbers recorded with it."""

from __future__ import annotations

from nanolab.load.router import Router, expected_work, plan

from .helpers import trace_request


def test_round_robin_takes_turns_and_skips_what_is_down() -> None:
    router = Router("round_robin", 3)
    request = trace_request("r")
    assert [router.choose(request, [0, 1, 2])[0] for _ in range(4)] == [0, 1, 2, 0]
    assert [router.choose(request, [0, 2])[0] for _ in range(3)] == [2, 0, 2]


def test_expected_work_gives_the_next_request_to_the_least_loaded() -> None:
    long, short = trace_request("long", prompt=700, output=64), trace_request("short", prompt=32, output=64)
    assert (expected_work(long), expected_work(short)) == (764, 96)
    router = Router("expected_work", 2)
    first, why = router.choose(long, [0, 1])
    assert (first, why["outstanding_tokens"]) == (0, [0, 0])
    assert [router.choose(short, [0, 1])[0] for _ in range(7)] == [1] * 7
    assert router.choose(short, [0, 1])[1]["outstanding_tokens"] == [764, 672]
    router.ended(long, 0)
    assert router.choose(short, [0, 1])[0] == 0


def test_plan_is_the_same_on_every_run() -> None:
    requests = [trace_request(f"r{index}", prompt=700 if index % 4 == 3 else 32) for index in range(12)]
    assert plan(requests, "round_robin", 2) == [0, 1] * 6
    planned = plan(requests, "expected_work", 2)
    assert planned == plan(requests, "expected_work", 2)
    work = [sum(expected_work(r) for r, p in zip(requests, planned, strict=True) if p == side) for side in (0, 1)]
    assert max(work) - min(work) < 700, "no side has a whole long request more than the other"
