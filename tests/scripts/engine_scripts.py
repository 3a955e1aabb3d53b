"""Runs a script of scripts/ as a learner does, but in this process, and reads what it wrote."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from click.testing import CliRunner, Result

ROOT = Path(__file__).resolve().parents[2]
NO_ENV = {"NANO_DIR": "", "MODEL_DIR": None}


def load_script(relative: str) -> ModuleType:
    path = ROOT / "scripts" / relative
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script: ModuleType, *arguments: str | Path) -> Result:
    result = CliRunner().invoke(script.main, [str(a) for a in arguments], env=NO_ENV)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def block_of(script: ModuleType, out: Path, *arguments: str | Path) -> tuple[Result, dict[str, Any]]:
    """Run with --out; the last line, the block's check and the exit code must agree."""
    result = run(script, *arguments, "--out", out)
    path = out if out.suffix == ".json" else out.with_name(out.name + ".json")
    assert path.is_file(), result.output
    block: dict[str, Any] = json.loads(path.read_text("utf-8"))
    codes = {"PASS": 0, "COLLECTED": 0, "FAIL": 1, "REVIEW": 3, "PENDING": 4}
    assert codes[block["check"]] == result.exit_code, result.output
    assert block["check"] in (result.stdout.splitlines()[-1:] + result.stderr.splitlines()[-1:])
    return result, block
