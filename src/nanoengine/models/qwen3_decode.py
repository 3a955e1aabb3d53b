"""The decode step of Qwen3 on one GPU, with few kernel launches.

The same mathematics as `qwen3.py`, over the same weights; only the grouping of operations differs. At small batch a
decode step is a few hundred tiny kernels, and what costs time is their number and the weights' bytes, not the
arithmetic. With one row, a layer takes six launches:

  1  norm + QKV projection                   4  output projection + residual
  2  QK-norm + RoPE + KV store + attention   5  norm + gate and up projections + silu(gate) * up
  3  merge of the attention's pieces         6  down projection + residual

With more rows the norms are launches of their own. Above `SKINNY_ROWS` the products go to cuBLAS, except those with
so few outputs that K is better cut as well. "Where the time goes" in the manual has what each step bought.
"""

import torch
import torch.nn.functional as F

from ..layers import kernels
from ..layers.attention import AttentionBackend
from ..layers.attention_triton import TritonBackend
from ..layers.layernorm import RMSNorm
from ..utils.context import StepInputs
from .qwen3 import Qwen3DecoderLayer, Qwen3ForCausalLM

SKINNY_ROWS = 16  # rows up to which the small-batch products written here beat cuBLAS


# The residual stream [N, hidden]: the first tensor plus, if it is there, the second. The first may come in pieces.
Stream = tuple[torch.Tensor, torch.Tensor | None]


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x W^T by whichever kernel suits the number of rows."""
    return kernels.linear(x, weight, pdl=True) if len(x) <= SKINNY_ROWS else F.linear(x, weight)


def product_to_residual(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> Stream:
    """x W^T and the residual stream: already added at few rows, left to the next norm at many."""
    if len(x) <= SKINNY_ROWS:
        return kernels.linear(x, weight, residual, pdl=True), None
    if kernels.splits_well(len(x), weight):
        return kernels.split_linear(x, weight, pdl=True), residual
    return F.linear(x, weight), residual


class Qwen3FusedDecode:
    def __init__(self, model: Qwen3ForCausalLM, backend: AttentionBackend) -> None:
        self.embed = model.model.embed_tokens
        self.layers: list[Qwen3DecoderLayer] = list(model.model.layers)  # type: ignore[arg-type]
        self.final_norm, self.head = model.model.norm, model.lm_head
        self.cos_sin = self.layers[0].self_attn.rotary.cos_sin
        self.backend = backend
        self.num_heads = self.layers[0].self_attn.num_heads
        self.num_kv_heads = self.layers[0].self_attn.num_kv_heads

    def __call__(self, step: StepInputs) -> torch.Tensor:
        """Logits [N, vocab] of a decode step."""
        stream: Stream = self.embed(step.input_ids), None
        for layer in self.layers:
            stream = self.layer(layer, stream, step)
        norm = self.final_norm
        if step.num_seqs == 1:
            return kernels.norm_linear(stream[0], norm.weight, norm.eps, self.head.weight, pdl=True)
        normed, _ = kernels.add_rms_norm(*stream, norm.weight, norm.eps, pdl=True)
        return F.linear(normed, self.head.weight)

    def layer(self, layer: Qwen3DecoderLayer, stream: Stream, step: StepInputs) -> Stream:
        attention, mlp = layer.self_attn, layer.mlp
        qkv, residual = self.norm_and_project(stream, layer.input_layernorm, attention.qkv_proj.weight)
        out = self.attend(layer, qkv, step)
        stream = product_to_residual(out.flatten(1), attention.o_proj.weight, residual)
        act, residual = self.norm_and_gate(stream, layer.post_attention_layernorm, mlp.gate_up_proj.weight)
        return product_to_residual(act, mlp.down_proj.weight, residual)

    def norm_and_project(
        self, stream: Stream, norm: RMSNorm, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(stream) W^T, the stream as one tensor)"""
        if stream[0].shape[-2] == 1:  # every program normalises the one row again, which is cheaper than a launch
            return kernels.norm_linear(stream[0], norm.weight, norm.eps, weight, pdl=True), stream[0]
        normed, residual = kernels.add_rms_norm(*stream, norm.weight, norm.eps, pdl=True)
        return product(normed, weight), residual

    def norm_and_gate(self, stream: Stream, norm: RMSNorm, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(silu(gate) * up of norm(stream), the stream as one tensor)"""
        if stream[0].shape[-2] == 1:
            return kernels.norm_gate_up_silu(stream[0], norm.weight, norm.eps, weight, pdl=True), stream[0]
        normed, residual = kernels.add_rms_norm(*stream, norm.weight, norm.eps, pdl=True)
        if len(normed) <= SKINNY_ROWS:
            return kernels.gate_up_silu(normed, weight, pdl=True), residual
        return kernels.silu_and_mul(F.linear(normed, weight), pdl=True), residual

    def attend(self, layer: Qwen3DecoderLayer, qkv: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """QKV [N, (heads + 2 * kv_heads) * head_dim] -> attention output [N, heads, head_dim]."""
        attention = layer.self_attn
        q_norm, k_norm, attn = attention.q_norm, attention.k_norm, attention.attn
        norms = (q_norm.weight, k_norm.weight, q_norm.eps)
        if isinstance(self.backend, TritonBackend):
            assert step.block_tables is not None and self.backend.workspace is not None
            out = kernels.rope_store_attend(
                qkv, *norms, self.cos_sin, step.positions, step.slot_mapping, attn.k_cache, attn.v_cache,
                step.block_tables, step.context_lens, self.backend.scale, self.num_heads, self.backend.workspace,
                pdl=True,
            )  # fmt: skip
            return kernels.merge_splits(self.backend.workspace, step.context_lens, out, self.num_kv_heads, pdl=True)
        q, _, _ = kernels.qk_norm_rope_store(
            qkv, *norms, self.cos_sin, step.positions, step.slot_mapping, attn.k_cache, attn.v_cache,
            self.num_heads, self.num_kv_heads, attention.head_dim, keep_k=False, pdl=True,
        )  # fmt: skip
        return self.backend.decode(q, attn.k_cache, attn.v_cache, step)
