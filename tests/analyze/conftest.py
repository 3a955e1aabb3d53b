"""Real logs of lab 03's three cases on the teaching model, made once."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def trace(tiny_model: Path) -> Callable[[str], list[dict[str, Any]]]:
    """The events of a case, with shapes."""
    path = ROOT / "scripts/labs/03_trace_engine.py"
    spec = importlib.util.spec_from_file_location("script_trace", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    kept: dict[str, list[dict[str, Any]]] = {}

    def events(case: str) -> list[dict[str, Any]]:
        if case not in kept:
            arguments = ["--case", case, "--shapes", "--model", str(tiny_model)]
            result = CliRunner().invoke(script.main, arguments, env={"NANO_DIR": ""})
            assert result.exit_code == 0, result.output
            kept[case] = [json.loads(line) for line in result.stdout.splitlines()]
        return kept[case]

    return events
