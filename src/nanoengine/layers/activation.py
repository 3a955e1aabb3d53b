"""The MLP's gate."""

import torch
import torch.nn.functional as F

from . import kernels


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for a packed [T, 2 * intermediate]."""
    if gate_up.is_cuda:
        return kernels.silu_and_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
