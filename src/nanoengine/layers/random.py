"""Random numbers as a function of (seed, position, token id): no state, any order, any batch.

The mixer is the 32-bit finaliser of MurmurHash3; unsigned 32-bit arithmetic is done in int64 and masked, so that the
same bits come out on every device.
"""

import torch

MASK = 0xFFFFFFFF
GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: spreads consecutive counters over the whole range


def mix(h: torch.Tensor) -> torch.Tensor:
    """Scramble 32-bit values held in int64."""
    h = h ^ (h >> 16)
    h = (h * 0x85EBCA6B) & MASK
    h = h ^ (h >> 13)
    h = (h * 0xC2B2AE35) & MASK
    return h ^ (h >> 16)


def counter_uniform(seeds: torch.Tensor, positions: torch.Tensor, count: int) -> torch.Tensor:
    """[N] seeds and positions -> [N, count] float32 strictly between 0 and 1."""
    key = mix((seeds.long() + mix(positions.long() * GOLDEN & MASK)) & MASK).unsqueeze(-1)  # [N, 1]
    counter = torch.arange(1, count + 1, device=seeds.device) * GOLDEN & MASK  # [count]
    bits = mix((key + counter) & MASK) >> 9  # 23 bits, so that adding a half stays exact in float32
    return (bits.float() + 0.5) * 2.0**-23
