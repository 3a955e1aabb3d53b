"""Random workloads on the real schedulers: thousands of steps, audited one by one.

Arrivals, lengths, shared prefixes, budgets, pool sizes, EOS and aborts are drawn by hypothesis (derandomised: the same
examples in every run). After every step the block accounting must balance, no block may have two owners except through
a shared prefix, no two sequences may write one slot, every sequence must read exactly its own history, and under
`balanced` everybody's turn comes. Every sequence ends.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanolab import sources
from nanolab.cases.scheduling import Engine
from nanolab.cases.scheduling_audit import Arrival, Workload, audit
from nanolab.evidence import repo_root
from nanolab.patches import build_baseline

EXAMPLES = 250
EOS = 2
ENGINES = ("baseline", "default", "balanced")


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Small sizes on purpose: what goes wrong at a border goes wrong there first. The pool is drawn around what the
    longest request needs, so that most workloads run short of blocks and some can never fit."""
    block = draw(st.integers(1, 5))
    stems = [draw(st.lists(st.integers(0, 3), min_size=block, max_size=3 * block)) for _ in range(2)]
    arrivals = []
    for _ in range(draw(st.integers(2, 10))):
        stem = draw(st.sampled_from([[], *stems, *stems]))
        tail = draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
        arrivals.append(
            Arrival(
                (*stem, *tail),
                max_tokens=draw(st.integers(1, 16)),
                step=draw(st.integers(0, 8)),
                abort_at=draw(st.sampled_from([None, None, None, 1, 2, 5, 9])),
            )
        )
    longest = max(-(-(len(a.prompt) + a.max_tokens) // block) for a in arrivals)
    return Workload(
        block_size=block,
        num_blocks=max(1, longest + draw(st.integers(-4, 8))),
        max_num_batched_tokens=draw(st.integers(1, 40)),
        max_num_seqs=draw(st.integers(1, 6)),
        arrivals=tuple(arrivals),
    )


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    baseline = sources.EngineSource("working-copy", build_baseline(tmp_path_factory.mktemp("baseline")), "nanoengine")
    bundled = sources.resolve(repo_root() / "src")
    return {
        "baseline": Engine.of(baseline, beside=True),
        "default": Engine.of(bundled, beside=True),
        "balanced": Engine.of(bundled, "balanced", beside=True),
    }


def accepted_token(seq: object) -> int:
    """Few different tokens, so that outputs share prefixes too; EOS comes now and then."""
    number = seq.seq_id % 2 * 7 + seq.num_tokens  # type: ignore[attr-defined]
    return EOS if number % 11 == 0 else number % 2


@pytest.mark.parametrize("name", ENGINES)
def test_any_workload_keeps_every_promise(engines: dict[str, Engine], name: str) -> None:
    seen: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES, derandomize=True, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(workloads())
    def play(workload: Workload) -> None:
        result = audit(engines[name], workload, accepted_token, EOS)
        assert result.problems == []
        assert all(reason in ("length", "eos", "kv_exhausted", "cancelled") for reason in result.reasons)
        seen.update({"steps": result.steps, "preemptions": result.preemptions, "shared": result.shared_blocks})
        seen.update(reason for reason in result.reasons if reason)

    play()
    # The workloads must really reach what they are there for.
    assert seen["steps"] > 2_000, seen
    assert min(seen[what] for what in ("preemptions", "shared", "length", "eos", "kv_exhausted", "cancelled")) > 20, (
        seen
    )


def test_default_and_baseline_make_the_same_steps(engines: dict[str, Engine]) -> None:
    @settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(workloads())
    def play(workload: Workload) -> None:
        one, other = (audit(engines[name], workload, accepted_token, EOS) for name in ("baseline", "default"))
        assert one == other

    play()


def test_the_audit_sees_a_history_that_is_not_the_readers(engines: dict[str, Engine], tmp_path: Path) -> None:
    """The content model can fail: blocks matched by hash alone, with a hash that forgets what came before."""
    from nanolab.patches.baseline import copy_engine

    copy_engine(repo_root() / "src", tmp_path)
    path = tmp_path / "nanoengine/engine/block_manager.py"
    text = path.read_text()
    assert text.count("if previous != NO_HASH:") == 1
    path.write_text(text.replace("if previous != NO_HASH:", "if False:"))
    broken = Engine.of(sources.EngineSource("working-copy", tmp_path, "nanoengine"), beside=True)
    first, same_second_block = (1, 1, 2, 2, 3), (3, 3, 2, 2, 3)
    late = Arrival((*first[:2], *same_second_block[2:], 9), 2, step=8)
    found = audit(broken, Workload(2, 12, 16, 4, (Arrival(same_second_block, 2), Arrival((1, 1, 7), 2, step=4), late)))
    assert any("holds the keys of other tokens" in line for line in found.problems)
