"""One small engine for the tests of this folder, on CPU with the teaching model."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nanoengine import LLM

OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "kvcache_block_size": 16,
    "num_kvcache_blocks": 64,
}


@pytest.fixture
def make_engine(tiny_model: Path) -> Iterator[Callable[..., LLM]]:
    """Make engines that are closed when the test ends."""
    engines: list[LLM] = []

    def make(**changes: Any) -> LLM:
        engines.append(LLM(str(tiny_model), **(OPTIONS | changes)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.exit()
