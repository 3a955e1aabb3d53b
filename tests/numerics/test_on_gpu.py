"""What only a GPU can show: routes by real replays, K and V beside eager, and the engine beside Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanolab import numerics, sources
from nanolab.numerics.compare import errors
from nanolab.numerics.routes import expected_route

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def run(model: Path, suite: numerics.Suite, **options: Any) -> numerics.ForcedRun:
    with sources.resolve(ROOT / "src").create_engine(model, **(suite.engine_options() | options)) as driver:
        return numerics.collect_engine(driver, suite, keep_kv=True)


def test_graphs_beside_eager(tiny_model: Path) -> None:
    suite = numerics.SUITES["graph"]
    eager, graph = (run(tiny_model, suite, device="cuda", enforce_eager=e) for e in (True, False))
    facts = graph.facts()
    wanted = {group.name: expected_route("graph", len(group.prompts), suite.max_num_seqs) for group in suite.groups}
    assert facts["routes"] == wanted
    for name in ("history_unchanged", "others_unchanged", "padding_safe"):
        assert facts[name], name
    assert max(errors(a, b)[1] for a, b in zip(graph.logits, eager.logits, strict=True)) <= 0.02
    assert max(errors(a, b)[0] for a, b in zip(graph.kv, eager.kv, strict=True)) <= 0.1
    assert np.isfinite(np.stack(graph.logits)).all()


def test_engine_beside_transformers(tiny_model: Path) -> None:
    suite = numerics.SUITES["baseline"]
    ours = run(tiny_model, suite, device="cuda", enforce_eager=True)
    theirs = numerics.collect_reference(numerics.load_reference(tiny_model, "cuda", "auto"), suite)
    for a, b in zip(ours.logits, theirs.logits, strict=True):
        assert errors(a, b)[1] <= 0.02
        assert a.argmax() == b.argmax()
