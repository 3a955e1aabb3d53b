"""What every test shares: the teaching model, made once a session, and Triton's interpreter in place of a GPU."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from nanolab.models import make_tiny

sys.path.insert(0, str(Path(__file__).parent / "kernels"))
import triton_interpreter


def pytest_configure(config: pytest.Config) -> None:
    """Triton decides when a kernel's module is imported whether it will be interpreted, and any test may import one.

    `-m gpu` runs the real kernels: interpreted ones would take hours there.
    """
    if config.option.markexpr != "gpu":
        triton_interpreter.enable()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the `tiny` model (bfloat16, seed 0). Shared by the session: never write into it."""
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def no_chat_template(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `tiny` model with a tokenizer that has no chat template."""
    directory = shutil.copytree(tiny_model, tmp_path_factory.mktemp("models") / "no-template")
    config_file = directory / "tokenizer_config.json"
    config = json.loads(config_file.read_text("utf-8"))
    del config["chat_template"]
    config_file.write_text(json.dumps(config), "utf-8")
    return directory


@pytest.fixture(scope="session")
def tiny_model_dir(tiny_model: Path) -> Path:
    """Another name of `tiny_model`."""
    return tiny_model
