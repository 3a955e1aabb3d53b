"""CUDA graphs that run on CPU: the same contract, the same captured buffers, no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class StandInGraph:
    """A CUDA graph's contract on CPU: replay runs the captured batch size over the captured buffers."""

    def __init__(self) -> None:
        self.captured: Callable[[], None] = lambda: None

    def replay(self) -> None:
        self.captured()


def give_graphs(driver: Any, sizes: list[int], fault: Callable[[Any], Any] = lambda inputs: inputs) -> None:
    """Make a CPU engine decode by replaying stand-in graphs; `fault` may spoil what a replay reads."""
    runner = driver.engine.model_runner
    header_class = driver.source.module("engine.step_buffer").StepHeader
    output_class = driver.source.module("engine.cuda_graph").StepOutput
    width = runner.step_buffer.decode_layout.width
    embedding = runner.model.model.embed_tokens

    def capture(size: int) -> StandInGraph:
        graph = StandInGraph()
        vocab = driver.vocab_size
        logits, ids = torch.zeros(size, vocab, dtype=runner.config.torch_dtype), torch.zeros(size, dtype=torch.int64)
        runner.decode_graphs.outputs[size] = output_class(logits, ids)

        def replay() -> None:
            header = header_class(False, size, size, 1, driver.max_model_len, width, 0)
            hooks, embedding._forward_pre_hooks = embedding._forward_pre_hooks, {}  # a replay calls no module
            try:
                out = runner.forward(fault(runner.step_buffer.device_inputs(header)))
            finally:
                embedding._forward_pre_hooks = hooks
            logits.copy_(out.logits)
            ids.copy_(out.token_ids)

        graph.captured = replay
        return graph

    runner.graph_bs = sizes
    for size in sizes:
        runner.decode_graphs.graphs[size] = capture(size)
    runner.enforce_eager = False
