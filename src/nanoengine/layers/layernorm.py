"""Root-mean-square normalisation, alone or fused with the residual addition before it."""

import torch
from torch import nn

from . import kernels
from .linear import new_weight


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = new_weight(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension; the mean is taken in float32."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the layer's output to the residual stream: returns (norm of the sum, the sum)."""
        if x.is_cuda:
            return kernels.add_rms_norm(x, residual, self.weight, self.eps)
        total = x if residual is None else x + residual
        return self(total), total
