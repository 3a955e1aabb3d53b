"""From logits to one token id per sequence.

Sampling uses the Gumbel-max trick: argmax(logits / temperature + noise) is a draw from the softmax. The noise is a
function of (seed, position, token id) alone, so a request with a seed gets the same tokens whatever is batched
beside it and in whatever order steps run.
"""

import torch

from . import kernels
from .random import sample_gumbel


def sample(
    logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """[N, vocab] logits -> [N] ids; temperature 0 takes the largest logit."""
    if logits.is_cuda:
        return kernels.sample(logits, temperatures, seeds, positions)
    return sample_gumbel(logits, temperatures, seeds, positions)


def keep_most_likely(
    logits: torch.Tensor, temperatures: torch.Tensor, top_k: list[int], top_p: list[float]
) -> torch.Tensor:
    """Logits with everything outside each row's top-k and top-p set to -inf; 0 and 1 keep all.

    top-p keeps the smallest set of tokens whose probability reaches p, counted after temperature and top-k.
    """
    ordered, index = logits.float().sort(dim=-1, descending=True)
    ranks = torch.arange(logits.shape[-1], device=logits.device)
    limits = torch.tensor([k or logits.shape[-1] for k in top_k], device=logits.device).unsqueeze(-1)
    ordered = ordered.masked_fill(ranks >= limits, -torch.inf)
    probability = torch.softmax(ordered / temperatures.where(temperatures > 0, 1).unsqueeze(-1), dim=-1)
    reached_before = probability.cumsum(dim=-1) - probability
    mass = torch.tensor(top_p, device=logits.device).unsqueeze(-1)
    ordered = ordered.masked_fill((reached_before >= mass) & (ranks > 0), -torch.inf)
    return torch.empty_like(ordered).scatter_(-1, index, ordered)
