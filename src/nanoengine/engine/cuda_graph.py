"""Decode steps captured once per batch size and replayed over fixed buffers.

A captured graph is a list of kernel launches with their addresses. Replaying it costs one launch instead of
hundreds, but it always runs the captured batch size on the captured memory: a smaller batch is padded, and the
inputs are copied into place before the replay.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..utils.context import StepInputs

LARGEST_GRAPH = 512


class StepOutput(NamedTuple):
    logits: torch.Tensor | None  # [N, vocab], None on ranks other than 0
    token_ids: torch.Tensor | None  # [N] one candidate per sequence


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Captured batch sizes: 1, 2, 4, 8, then every 16 up to max_num_seqs or 512."""
    limit = min(max_num_seqs, LARGEST_GRAPH)
    return [size for size in (1, 2, 4, 8) if size <= limit] + list(range(16, limit + 1, 16))


class DecodeGraphs:
    """`graphs[size]` replays a decode step of `size` rows; one memory pool serves all sizes."""

    def __init__(self) -> None:
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.outputs: dict[int, StepOutput] = {}
        self._pool: Any = None

    def capture(self, size: int, forward: Callable[[StepInputs], StepOutput], inputs: StepInputs) -> None:
        forward(inputs)  # compile and allocate outside the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = forward(inputs)
        self._pool = self._pool or graph.pool()
        self.graphs[size], self.outputs[size] = graph, output

    def replay(self, size: int, num_seqs: int) -> StepOutput:
        """Run the captured step; only the first `num_seqs` rows mean anything."""
        self.graphs[size].replay()
        logits, token_ids = self.outputs[size]
        return StepOutput(
            None if logits is None else logits[:num_seqs], None if token_ids is None else token_ids[:num_seqs]
        )
