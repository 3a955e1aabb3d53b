"""Steps captured once per size and replayed over fixed buffers.

A captured graph is a list of kernel launches with their addresses. Replaying it costs one launch instead of
hundreds, but it always runs the captured size on the captured memory: a smaller batch is padded, and the inputs are
copied into place before the replay. The size of a decode step is its number of sequences. The size of a prefill
step, captured only with `prefill_graphs`, is its number of tokens.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..utils.context import StepInputs

LARGEST_GRAPH = 512
PREFILL_SIZES = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048)  # tokens; larger steps take long to compute anyway
PREFILL_ROWS = 32  # sequences that a captured prefill step has room for


class StepOutput(NamedTuple):
    logits: torch.Tensor | None  # [N, vocab], None on ranks other than 0
    token_ids: torch.Tensor | None  # [N] one candidate per sequence


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Captured batch sizes: 1, 2, 4, 8, then every 16 up to max_num_seqs or 512."""
    limit = min(max_num_seqs, LARGEST_GRAPH)
    return [size for size in (1, 2, 4, 8) if size <= limit] + list(range(16, limit + 1, 16))


class StepGraphs:
    """`graphs[size]` replays a step of that size; one memory pool serves all sizes."""

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
