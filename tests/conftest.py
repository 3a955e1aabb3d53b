"""Fixtures shared by every test: the teaching model, made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanolab.models import make_tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the `tiny` model (bfloat16, seed 0). Shared by the session: never write into it."""
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_model_dir(tiny_model: Path) -> Path:
    """Another name of `tiny_model`."""
    return tiny_model
