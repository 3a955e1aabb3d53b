"""Loads a script of scripts/ as a module, so that its examples can be called and its commands driven."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def load_script() -> Callable[[str], ModuleType]:
    def load(relative: str) -> ModuleType:
        path = ROOT / "scripts" / relative
        spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def principles(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("e2e/principles.py")


@pytest.fixture(scope="session")
def qwen3_tokenizer() -> Path:
    """The real Qwen3 tokenizer: $QWEN3_TOKENIZER_DIR, else shared/data beside the repository."""
    given = os.environ.get("QWEN3_TOKENIZER_DIR")
    directory = Path(given) if given else ROOT.parent / "shared" / "data" / "qwen3-tokenizer"
    if not (directory / "tokenizer.json").is_file():
        pytest.skip("no Qwen3 tokenizer: set QWEN3_TOKENIZER_DIR to the directory of its tokenizer.json")
    return directory
