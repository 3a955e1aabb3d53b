"""Linear layers, cut across ranks: by output rows (column parallel) or by input columns (row parallel).

Packed layers hold several of the checkpoint's matrices under each other, so that one matrix product replaces two or
three; `load_shard` puts each of them into its rows.
"""

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import ModelError
from .parallel import TensorParallel


def new_weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


def fill(target: torch.Tensor, weight: torch.Tensor) -> None:
    """Copy a checkpoint tensor into a parameter of exactly the same shape (`copy_` alone would broadcast)."""
    if target.shape != weight.shape:
        raise ModelError(f"the model needs shape {tuple(target.shape)}, the checkpoint gives {tuple(weight.shape)}")
    target.copy_(weight)


class ColumnParallelLinear(nn.Module):
    """y = x W^T, with this rank holding some rows of W. `parts` names the row ranges of a packed weight."""

    def __init__(self, in_features: int, parts: dict[str, int], tp: TensorParallel) -> None:
        super().__init__()
        self.tp = tp
        self.parts = {name: tp.divide(size, f"the output size of {name}") for name, size in parts.items()}
        self.weight = new_weight(sum(self.parts.values()), in_features)

    def rows(self, part: str) -> slice:
        """This rank's rows of the packed weight that hold `part`."""
        start = 0
        for name, size in self.parts.items():
            if name == part:
                return slice(start, start + size)
            start += size
        raise KeyError(part)

    def load_shard(self, weight: torch.Tensor, part: str) -> None:
        fill(self.weight.data[self.rows(part)], self.tp.shard(weight, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


class QKVParallelLinear(ColumnParallelLinear):
    """Rows of Q, then K, then V: [T, hidden] -> [T, (heads + 2 * kv_heads) * head_dim] / ranks."""

    def __init__(self, hidden: int, head_dim: int, heads: int, kv_heads: int, tp: TensorParallel) -> None:
        super().__init__(hidden, {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}, tp)


class RowParallelLinear(nn.Module):
    """y = sum over ranks of x_r W_r^T, with this rank holding some columns of W."""

    def __init__(self, in_features: int, out_features: int, tp: TensorParallel) -> None:
        super().__init__()
        self.tp = tp
        self.weight = new_weight(out_features, tp.divide(in_features, "the input size"))

    def load(self, weight: torch.Tensor) -> None:
        fill(self.weight.data, self.tp.shard(weight, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tp.size == 1 or x.is_cuda:
            return self.tp.all_reduce(F.linear(x, self.weight))
        # On CPU the ranks' addends are rounded only after the sum, so that two ranks give the tokens of one.
        return self.tp.all_reduce(F.linear(x.float(), self.weight.float())).to(x.dtype)
