"""The reference backend: gather a sequence's pages, then PyTorch's scaled dot-product attention.

One sequence at a time and nothing clever: it runs everywhere, with any page size, and every other backend is
compared with it.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F

from ..utils.context import StepInputs


class TorchBackend:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def reserve(self, max_batch: int, num_heads: int, k_cache: torch.Tensor) -> None:
        """Nothing to prepare."""

    def store(
        self, k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepInputs
    ) -> None:
        real = step.slot_mapping >= 0
        slots = step.slot_mapping[real].long()
        k_cache.flatten(0, 1)[slots] = k[real]
        v_cache.flatten(0, 1)[slots] = v[real]

    def prefill(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: StepInputs,
    ) -> torch.Tensor:
        assert step.cu_seqlens_q is not None
        bounds = step.cu_seqlens_q.tolist()
        out = torch.empty_like(q)
        for row, (start, end) in enumerate(pairwise(bounds)):
            keys, values = k[start:end], v[start:end]
            if step.block_tables is not None:  # some keys were computed in an earlier step
                keys, values = self._gather(k_cache, v_cache, step, row)
            out[start:end] = self._attend(q[start:end], keys, values)
        return out

    def decode(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepInputs) -> torch.Tensor:
        out = torch.zeros_like(q)
        for row in range(q.shape[0]):
            keys, values = self._gather(k_cache, v_cache, step, row)
            if len(keys):  # a padded row has no keys and stays zero
                out[row : row + 1] = self._attend(q[row : row + 1], keys, values)
        return out

    def _gather(
        self, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepInputs, row: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of one sequence, [length, kv_heads, head_dim], page after page."""
        assert step.block_tables is not None
        length = int(step.context_lens[row])
        pages = step.block_tables[row, : -(-length // k_cache.shape[1])].long()
        return k_cache[pages].flatten(0, 1)[:length], v_cache[pages].flatten(0, 1)[:length]

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Causal attention of the last len(q) positions over len(k) keys."""
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # [1, heads, length, head_dim]
        num_q, num_k = q.shape[2], k.shape[2]
        mask = torch.ones(num_q, num_k, dtype=torch.bool, device=q.device).tril(num_k - num_q)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale, enable_gqa=True)
        return out.squeeze(0).transpose(0, 1)
