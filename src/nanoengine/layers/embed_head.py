"""Token embedding and language-model head, cut across ranks by vocabulary rows."""

import torch
import torch.nn.functional as F
from torch import nn

from .linear import fill, new_weight
from .parallel import TensorParallel


class VocabParallelEmbedding(nn.Module):
    def __init__(self, vocab_size: int, hidden: int, tp: TensorParallel) -> None:
        super().__init__()
        self.tp = tp
        self.rows = tp.divide(vocab_size, "the vocabulary")
        self.weight = new_weight(self.rows, hidden)

    def load(self, weight: torch.Tensor) -> None:
        fill(self.weight.data, self.tp.shard(weight, 0))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[T] ids -> [T, hidden]; a rank contributes zeros for ids whose rows another rank holds."""
        if self.tp.size == 1:
            return F.embedding(input_ids, self.weight)
        local = input_ids - self.tp.rank * self.rows
        mine = (local >= 0) & (local < self.rows)
        vectors = F.embedding(local.where(mine, 0), self.weight) * mine.unsqueeze(-1)
        return self.tp.all_reduce(vectors)


class ParallelLMHead(VocabParallelEmbedding):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor | None:  # type: ignore[override]
        """[N, hidden] -> logits [N, vocab] on rank 0, None on the others."""
        return self.tp.gather_last_dim(F.linear(hidden, self.weight))
