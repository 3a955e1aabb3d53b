"""The Triton backend: kernels written here (`kernels/`), any page size that is a multiple of 16, nothing to compile."""

import torch

from ..utils.context import StepInputs
from .kernels import DecodeWorkspace, paged_decode_attention, paged_prefill_attention, prefill_attention, store_kv


class TritonBackend:
    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.workspace: DecodeWorkspace | None = None

    def reserve(self, max_batch: int, num_heads: int, k_cache: torch.Tensor) -> None:
        """Scratch memory for the pieces of split sequences, shared by all layers; graphs keep its address."""
        _, _, num_kv_heads, head_dim = k_cache.shape
        self.workspace = DecodeWorkspace.allocate(max_batch, num_heads, num_kv_heads, head_dim, k_cache.device)

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
        assert step.cu_seqlens_q is not None and step.cu_seqlens_k is not None
        if step.block_tables is None:
            return prefill_attention(q, k, v, step.cu_seqlens_q, step.max_seqlen_q, self.scale)
        return paged_prefill_attention(
            q, k_cache, v_cache, step.cu_seqlens_q, step.cu_seqlens_k, step.block_tables, step.max_seqlen_q, self.scale
        )

    def decode(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepInputs) -> torch.Tensor:
        assert step.block_tables is not None and self.workspace is not None
        return paged_decode_attention(
            q, k_cache, v_cache, step.block_tables, step.context_lens, self.scale, self.workspace
        )
