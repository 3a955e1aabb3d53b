"""Collections made once a session on the teaching model, and an engine ready for stand-in graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_in_graphs import StandInGraph

from nanolab import numerics, sources
from nanolab.numerics import ForcedRun

ROOT = Path(__file__).resolve().parents[2]
Collect = Callable[..., ForcedRun]


@pytest.fixture(scope="session")
def engine_run(tiny_model: Path) -> Collect:
    """Collect a suite from the bundled engine; results are kept per (suite, dtype)."""
    kept: dict[tuple[str, str], ForcedRun] = {}

    def collect(suite: str = "baseline", dtype: str = "float32") -> ForcedRun:
        if (suite, dtype) not in kept:
            options = numerics.SUITES[suite].engine_options() | {"dtype": dtype}
            with sources.resolve(ROOT / "src").create_engine(tiny_model, **options) as driver:
                kept[suite, dtype] = numerics.collect_engine(driver, numerics.SUITES[suite], keep_kv=suite == "graph")
        return kept[suite, dtype]

    return collect


@pytest.fixture(scope="session")
def reference_run(tiny_model: Path) -> Collect:
    kept: dict[str, ForcedRun] = {}

    def collect(dtype: str = "float32") -> ForcedRun:
        if dtype not in kept:
            model = numerics.load_reference(tiny_model, "cpu", dtype)
            kept[dtype] = numerics.collect_reference(model, numerics.SUITES["baseline"])
        return kept[dtype]

    return collect


@pytest.fixture
def graph_driver(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An engine on CPU ready for `give_graphs`."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandInGraph)
    options = numerics.SUITES["graph"].engine_options() | {"dtype": "float32"}
    with sources.resolve(ROOT / "src").create_engine(tiny_model, **options) as driver:
        yield driver
