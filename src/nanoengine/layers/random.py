"""Counter-based random numbers: the same (seed, position, index) gives the same number on any device.

A sampled token must not depend on batch composition, on the order of requests or on the device. So there is no
generator state: a number is a hash of the request's seed, the position being sampled and the vocabulary index.
The hash is MurmurHash3's 32-bit finaliser over a counter (the vocabulary index, spread by a multiplication), which
the two halves of a 64-bit row key shift and flip: rows read the same words in unrelated orders. It uses 32-bit
products, sums, shifts and exclusive ors only, which torch's int64 reproduces bit for bit under a mask. The Triton
sampler (kernels/sampling.py) holds the same functions.
"""

from __future__ import annotations

import torch

MASK = 0xFFFFFFFF
MIX_1, MIX_2 = 0x85EBCA6B, 0xC2B2AE35  # MurmurHash3's finaliser (Austin Appleby, public domain)
GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: spreads consecutive counters


def mix(h: torch.Tensor) -> torch.Tensor:
    """The finaliser: a bijection of 32-bit words (held in int64) in which every input bit moves every output bit."""
    h = h ^ (h >> 16)
    h = (h * MIX_1) & MASK
    h = h ^ (h >> 13)
    h = (h * MIX_2) & MASK
    return h ^ (h >> 16)


def row_keys(seeds: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two 32-bit key words a row from its 64-bit seed [n] and position [n]."""
    seeds, positions = seeds.to(torch.int64), positions.to(torch.int64) & MASK
    low = mix((seeds & MASK) ^ mix((positions + GOLDEN) & MASK))
    high = mix(((seeds >> 32) & MASK) ^ mix(low ^ positions))
    return low, high


def counter_uniform(seeds: torch.Tensor, positions: torch.Tensor, width: int) -> torch.Tensor:
    """Uniform numbers in (0, 1), float32 [n, width], for rows of seeds [n] and positions [n].

    23 random bits a number, at the middle of their interval: 2^-24 .. 1 - 2^-24, exact in float32, never 0 or 1.
    """
    low, high = row_keys(seeds, positions)
    index = torch.arange(width, dtype=torch.int64, device=seeds.device)
    h = mix(((index[None, :] * GOLDEN + high[:, None]) & MASK) ^ low[:, None])
    return ((h >> 9).to(torch.float32) + 0.5) * 2.0**-23


def sample_gumbel(
    logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Token ids [n] int64 from logits [n, vocabulary]; a temperature of 0 is greedy, ties go to the lowest id.

    Standard Gumbel noise is -log(-log(uniform)); argmax(logits / T + noise) is distributed as softmax(logits / T).
    """
    greedy = (temperatures == 0)[:, None]
    scale = torch.where(greedy, 1.0, temperatures[:, None].to(torch.float32))
    noise = -torch.log(-torch.log(counter_uniform(seeds, positions, logits.shape[1])))
    return (logits.to(torch.float32) / scale + torch.where(greedy, 0.0, noise)).argmax(dim=-1)
