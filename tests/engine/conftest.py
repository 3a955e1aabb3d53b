"""One small engine for the tests of this folder, on CPU with the teaching model."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nanoengine import LLM
from nanolab.load.sidebyside import free_port

OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "kvcache_block_size": 16,
    "num_kvcache_blocks": 64,
}


def two_ranks() -> dict[str, Any]:
    """The options of a two-rank engine whose ranks meet where no other engine of this host does."""
    port = free_port()
    own = {"dist_init_method": f"tcp://127.0.0.1:{port}", "shm_name": f"nanolab_test_{port}"}
    return OPTIONS | own | {"tensor_parallel_size": 2}


@pytest.fixture
def two_rank_options() -> dict[str, Any]:
    return two_ranks()


@pytest.fixture
def make_engine(tiny_model: Path) -> Iterator[Callable[..., LLM]]:
    """Make engines that are closed when the test ends."""
    engines: list[LLM] = []

    def make(**changes: Any) -> LLM:
        options = two_ranks() if changes.get("tensor_parallel_size") == 2 else OPTIONS
        engines.append(LLM(str(tiny_model), **(options | changes)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.exit()
