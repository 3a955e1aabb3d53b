"""What every kernel of this package shares: launch options, shape checks and the dependent-launch hooks.

Programmatic dependent launch (PDL, Hopper and newer). Normally a kernel starts only when the one before it in
the stream has finished; the launch gap and the first loads are then paid in full, about 2 us a kernel. With PDL a
kernel may start early, do work that depends on nothing (load weights), and then wait. Two rules keep it correct:

1. every program of a PDL kernel calls `wait_for_inputs` before it touches anything another kernel wrote or reads;
2. `allow_next` may come early, because the next kernel waits for the END of this one, not for the call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOG2E = 1.4426950408889634  # exp(x) = exp2(x * LOG2E); the GPU has exp2 in hardware


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Let the next kernel start its prologue, then block until the kernels before this one have finished."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@lru_cache
def supports_pdl(device: torch.device) -> bool:
    """True when kernels may be launched dependently on this device: compute capability 9.0 or newer."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def launch_options(pdl: bool, device: torch.device, num_warps: int, num_stages: int = 3) -> dict[str, Any]:
    """Keyword arguments every launch ends with. A caller asks for `pdl`; a device that cannot ignores it."""
    options: dict[str, Any] = {"PDL": False, "num_warps": num_warps, "num_stages": num_stages}
    if pdl and supports_pdl(device):
        options |= {"PDL": True, "launch_pdl": True}
    return options


def power_of_two(value: int) -> int:
    """The smallest power of two that is not below `value`: block shapes are powers of two."""
    return 1 << max(value - 1, 0).bit_length()


def check_head_dim(head_dim: int) -> None:
    """A head is one tile row: its width must be a power of two that the tensor cores can take."""
    if head_dim < 16 or head_dim & (head_dim - 1):
        raise ValueError(
            f"the triton kernels need a head_dim that is a power of two and at least 16, got {head_dim}; "
            "use attention_backend='torch'"
        )


def check_page_size(page_size: int) -> None:
    """Tiles of 16 keys must not cross a page at an odd place."""
    if page_size <= 0 or page_size % 16:
        raise ValueError(
            f"the triton kernels need kvcache_block_size to be a multiple of 16, got {page_size}; "
            "choose 16, 32, ... 256, or attention_backend='torch'"
        )
