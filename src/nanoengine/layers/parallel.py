"""One rank's place in a tensor-parallel engine; a single-GPU engine has size 1 and needs no process group."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..errors import ModelError


@dataclass(frozen=True)
class TensorParallel:
    rank: int = 0
    size: int = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum of every rank's `x`, in place."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def gather_last_dim(self, x: torch.Tensor) -> torch.Tensor | None:
        """[..., n] of every rank side by side on rank 0, None on the others."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(x, parts, dst=0)
        return torch.cat(parts, dim=-1) if parts else None

    def minimum(self, value: int, device: torch.device) -> int:
        """The smallest `value` of all ranks."""
        if self.size > 1:
            shared = torch.tensor(value, dtype=torch.int64, device=device)
            dist.all_reduce(shared, op=dist.ReduceOp.MIN)
            value = int(shared.item())
        return value

    def divide(self, count: int, what: str) -> int:
        if count % self.size:
            raise ModelError(f"{what} is {count}, which does not divide by tensor_parallel_size {self.size}")
        return count // self.size

    def shard(self, weight: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's part of a full weight, cut along `dim`."""
        width = self.divide(weight.shape[dim], f"dimension {dim} of a weight of shape {tuple(weight.shape)}")
        return weight.narrow(dim, self.rank * width, width)
