"""The flash-attn package (2.8): variable-length attention for prefill, paged split-KV attention for decode."""

import torch
from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

from ..utils.context import StepInputs
from .kernels import store_kv


class FlashAttnBackend:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def reserve(self, max_batch: int, num_heads: int, k_cache: torch.Tensor) -> None:
        """Nothing to prepare."""

    def store(
        self, k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepInputs
    ) -> None:
        store_kv(k, v, k_cache, v_cache, step.slot_mapping)

    def prefill(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: StepInputs,
    ) -> torch.Tensor:
        if step.block_tables is not None:
            k, v = k_cache, v_cache
        out: torch.Tensor = flash_attn_varlen_func(
            q, k, v,
            cu_seqlens_q=step.cu_seqlens_q, cu_seqlens_k=step.cu_seqlens_k,
            max_seqlen_q=step.max_seqlen_q, max_seqlen_k=step.max_seqlen_k,
            softmax_scale=self.scale, causal=True, block_table=step.block_tables,
        )  # fmt: skip
        return out

    def decode(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepInputs) -> torch.Tensor:
        out: torch.Tensor = flash_attn_with_kvcache(
            q.unsqueeze(1), k_cache, v_cache,
            cache_seqlens=step.context_lens, block_table=step.block_tables, softmax_scale=self.scale, causal=True,
        )  # fmt: skip
        return out.squeeze(1)
