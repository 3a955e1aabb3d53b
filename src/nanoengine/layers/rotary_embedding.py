"""Rotary position embedding: each pair (x_i, x_{i + d/2}) of a head turns by position * theta^(-2i/d)."""

import torch
from torch import nn


class RotaryEmbedding(nn.Module):
    cos_sin: torch.Tensor  # [max_positions, head_dim] float32: cosines, then sines

    def __init__(self, head_dim: int, max_positions: int, theta: float) -> None:
        super().__init__()
        frequencies = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float64), frequencies)
        table = torch.cat((angles.cos(), angles.sin()), dim=-1).float()
        self.register_buffer("cos_sin", table, persistent=False)

    def forward(self, positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Rotate x [T, heads, head_dim] by its positions [T]; computed in float32."""
        cos, sin = self.cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
