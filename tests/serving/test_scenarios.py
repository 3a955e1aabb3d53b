"""`run.py simulate`: every scenario holds, and each one can fail."""

from __future__ import annotations

import pytest

from nanolab.serving import scenarios
from nanolab.serving.events import Event, Reason
from nanolab.serving.simulated import SimulatedEngine
from nanolab.serving.worker import Worker


@pytest.mark.parametrize("scenario", scenarios.SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario_holds(scenario: scenarios.Scenario) -> None:
    events: list[Event] = []
    outcome = scenarios.run_scenario(scenario, events.extend)
    assert outcome.problems == []
    assert outcome.requests >= 1
    assert events
    assert {event.worker_id for event in events} == {scenario.name}


def test_eight_scenarios_as_the_contract_names_them() -> None:
    assert [scenario.name for scenario in scenarios.SCENARIOS] == [
        "dynamic-join",
        "token-streaming",
        "cancel-waiting",
        "cancel-generating",
        "queue-full",
        "slow-consumer",
        "engine-exception",
        "close",
    ]


def find(name: str) -> scenarios.Scenario:
    return next(scenario for scenario in scenarios.SCENARIOS if scenario.name == name)


def test_a_worker_that_forgets_to_abort_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedEngine, "_take_blocks", lambda self, sequence: None)
    outcome = scenarios.run_scenario(find("cancel-generating"), lambda events: None)
    assert any("blocks are free again" in problem for problem in outcome.problems)


def test_a_worker_with_the_wrong_reason_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Worker._finish

    def wrong(self, ticket, reason, message=None):  # type: ignore[no-untyped-def]
        finish(self, ticket, Reason.ERROR if reason is Reason.CANCELLED else reason, message)

    monkeypatch.setattr(Worker, "_finish", wrong)
    outcome = scenarios.run_scenario(find("cancel-waiting"), lambda events: None)
    assert any("ends exactly once as cancelled" in problem for problem in outcome.problems)
