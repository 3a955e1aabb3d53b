"""The MLP's gate."""

import torch
import torch.nn.functional as F


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for a packed [T, 2 * intermediate]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
