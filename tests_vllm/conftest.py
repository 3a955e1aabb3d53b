"""Tests that drive vLLM on CPU: `make test-vllm` makes its environment first. Not part of `make test`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from nanolab.evidence import repo_root
from nanolab.load.sidebyside import free_port, running, vllm_command, vllm_environment
from nanolab.models import make_tiny

START_S = 600.0
StartVllm = Callable[[], AbstractContextManager[str]]


@pytest.fixture(scope="session")
def vllm_venv() -> Path:
    """Absent, every test errors: a skipped job would look like a passed one."""
    venv = Path(os.environ.get("VLLM_VENV", repo_root() / ".venv-vllm"))
    if not (venv / ".ready").is_file():
        raise RuntimeError(f"no vLLM environment in {venv}: run `bash scripts/maintain/vllm_env.sh --dir {venv}`")
    return venv


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def start_vllm(vllm_venv: Path, tiny_model: Path, tmp_path: Path) -> StartVllm:
    """A context manager that serves the teaching model with vLLM and gives the URL."""

    @contextmanager
    def start() -> Iterator[str]:
        port, vllm = free_port(), vllm_venv / "bin" / "vllm"
        command = vllm_command(vllm, tiny_model, port, max_model_len=1024, seqs=4, tokens=256)
        url = f"http://127.0.0.1:{port}"
        with running(command, url, tmp_path / "vllm.txt", vllm_environment(os.environ, vllm), START_S):
            yield url

    return start
