"""Captured prefill steps, on CPU: a stand-in graph runs the captured size over the captured buffers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nanoengine import LLM, SamplingParams
from nanoengine.engine import model_runner
from nanoengine.engine.cuda_graph import StepGraphs, StepOutput
from nanoengine.errors import ConfigError

Make = Callable[..., LLM]
SIZES = (16, 32, 64)
PREFIX = list(range(1, 41))  # two full blocks and a half


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make `capture_prefills` work on CPU; the list tells the sizes that were replayed."""
    replayed: list[int] = []

    def capture(self: StepGraphs, size: int, forward: Callable[[Any], StepOutput], inputs: Any) -> None:
        forward(inputs)
        self.graphs[size] = lambda: forward(inputs)  # type: ignore[assignment]

    def replay(self: StepGraphs, size: int, num_seqs: int) -> StepOutput:
        replayed.append(size)
        logits, token_ids = self.graphs[size]()  # type: ignore[operator]
        return StepOutput(logits[:num_seqs], token_ids[:num_seqs])

    monkeypatch.setattr(StepGraphs, "capture", capture)
    monkeypatch.setattr(StepGraphs, "replay", replay)
    monkeypatch.setattr(model_runner, "PREFILL_SIZES", SIZES)
    monkeypatch.setattr(model_runner, "PREFILL_ROWS", 3)
    return replayed


def outputs(engine: LLM, prompts: list[Any], **params: Any) -> list[list[int]]:
    wanted = SamplingParams(**({"temperature": 0.8, "seed": 3, "max_tokens": 12, "ignore_eos": True} | params))
    return [found["token_ids"] for found in engine.generate(prompts, wanted, use_tqdm=False)]


BATCHES: list[list[list[int]]] = [
    [[5]],  # one token in the smallest size
    [list(range(9, 25))],  # exactly a size
    [[1, 2, 3], list(range(50, 80)), [9] * 17],  # three sequences: all that there is room for
    [[1, 2], [3, 4], [5, 6], [7, 8]],  # one too many: runs kernel by kernel
    [PREFIX, [*PREFIX[:32], 7, 8]],
    [[*PREFIX, 99]],  # a history, found in the cache
    [list(range(1, 150))],  # a prompt in three chunks
]


def test_the_tokens_are_those_of_plain_steps(make_engine: Make, capturing: list[int]) -> None:
    engines = [make_engine() for _ in range(2)]
    engines[1].model_runner.capture_prefills()
    for batch in BATCHES:
        for options in ({}, {"temperature": 0.0}, {"top_k": 5, "top_p": 0.7}):
            plain, captured = (outputs(engine, batch, **options) for engine in engines)
            assert captured == plain, (batch, options)
    assert set(capturing) == set(SIZES)


def test_tokens_are_the_same_when_blocks_are_short(make_engine: Make, capturing: list[int]) -> None:
    engines = [make_engine(num_kvcache_blocks=7) for _ in range(2)]
    engines[1].model_runner.capture_prefills()
    prompts = [list(range(start, start + 25)) for start in (1, 40, 80)]
    plain, captured = (outputs(engine, prompts, max_tokens=20) for engine in engines)
    assert captured == plain
    assert capturing


def test_a_batch_without_a_size_is_not_replayed(make_engine: Make, capturing: list[int]) -> None:
    engine = make_engine()
    engine.model_runner.capture_prefills()
    outputs(engine, [[1, 2], [3, 4], [5, 6], [7, 8]])
    assert capturing == []
    outputs(engine, [[1, 2], [3, 4]])
    assert capturing == [16]


def test_padding_touches_no_block(make_engine: Make, capturing: list[int]) -> None:
    engine = make_engine()
    runner = engine.model_runner
    runner.capture_prefills()
    runner.kv_cache.fill_(7.0)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=4))
    seqs, _ = engine.scheduler.schedule()
    runner.run(seqs, True)
    assert capturing == [16]
    written = runner.kv_cache.flatten(2, 3).ne(7.0).flatten(3).any(-1)  # [2, layers, slots]
    block = seqs[0].block_table[0] * runner.block_size
    assert written.any(dim=(0, 1)).nonzero().flatten().tolist() == [block, block + 1, block + 2]


def test_sizes_beyond_the_budget_are_not_captured(make_engine: Make, capturing: list[int]) -> None:
    engine = make_engine(max_num_batched_tokens=48, max_num_seqs=2)
    engine.model_runner.capture_prefills()
    assert sorted(engine.model_runner.prefill_graphs.graphs) == [16, 32]
    assert [layout.rows for layout in engine.model_runner.step_buffer.captured_prefills] == [2, 2]


def test_it_needs_graphs_and_one_gpu(make_engine: Make) -> None:
    with pytest.raises(
        ConfigError, match=r"prefill_graphs is True with enforce_eager=True .* needs enforce_eager=False"
    ):
        make_engine(prefill_graphs=True, enforce_eager=True)
    with pytest.raises(ConfigError, match="tensor_parallel_size 2; it needs"):
        make_engine(prefill_graphs=True, tensor_parallel_size=2)
    engine = make_engine(prefill_graphs=True)  # a CPU runs eagerly whatever is asked for
    assert engine.model_runner.prefill_graphs.graphs == {}
    assert torch.tensor(outputs(engine, [[1, 2]])).shape == (1, 12)
