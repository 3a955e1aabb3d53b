"""The decode step of Qwen3 on one GPU, with as few kernel launches as possible.

The same mathematics as `qwen3.py`, over the same weights; only the grouping of operations differs. At small batch a
decode step is a few hundred tiny kernels, and what costs time is their number and the weights' bytes, not the
arithmetic. A layer takes five launches:

  1  norm + QKV projection                4  norm + gate and up projections + silu(gate) * up
  2  QK-norm + RoPE + KV store + attend   5  down projection + residual
  3  merge of attention pieces + output projection + residual

With more rows than those kernels take, norms and products are separate again, and the products go to cuBLAS.
"""

import torch
import torch.nn.functional as F

from ..layers import kernels
from ..layers.attention import AttentionBackend
from ..layers.attention_triton import TritonBackend
from ..utils.context import StepInputs
from .qwen3 import Qwen3DecoderLayer, Qwen3ForCausalLM

GEMV_ROWS = 4  # rows that the launches with a fused norm take
SKINNY_ROWS = 16  # rows that the small-batch products take


def product(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T (+ residual) by whichever kernel suits the number of rows."""
    if len(x) <= SKINNY_ROWS:
        return kernels.linear(x, weight, residual, pdl=True)
    return F.linear(x, weight) if residual is None else torch.addmm(residual, x, weight.t())


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
        hidden = self.embed(step.input_ids)  # [N, hidden]: the residual stream itself
        for layer in self.layers:
            hidden = self.few_rows(layer, hidden, step) if len(hidden) <= GEMV_ROWS else self.rows(layer, hidden, step)
        norm = self.final_norm
        if len(hidden) <= GEMV_ROWS:
            return kernels.norm_linear(hidden, norm.weight, norm.eps, self.head.weight, pdl=True)
        normed, _ = kernels.add_rms_norm(hidden, None, norm.weight, norm.eps, pdl=True)
        return product(normed, self.head.weight)

    def few_rows(self, layer: Qwen3DecoderLayer, hidden: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """Five launches, when the rows are few enough for each program to normalise them again."""
        attention, mlp = layer.self_attn, layer.mlp
        norm_1, norm_2 = layer.input_layernorm, layer.post_attention_layernorm
        qkv = kernels.norm_linear(hidden, norm_1.weight, norm_1.eps, attention.qkv_proj.weight, pdl=True)
        out = self.attend(layer, qkv, step)
        if isinstance(self.backend, TritonBackend):
            assert self.backend.workspace is not None
            hidden = kernels.merge_linear_residual(
                out,
                self.backend.workspace,
                step.context_lens,
                self.num_kv_heads,
                attention.o_proj.weight,
                hidden,
                pdl=True,
            )
        else:
            hidden = product(out.flatten(1), attention.o_proj.weight, hidden)
        act = kernels.norm_gate_up_silu(hidden, norm_2.weight, norm_2.eps, mlp.gate_up_proj.weight, pdl=True)
        return kernels.linear(act, mlp.down_proj.weight, hidden, pdl=True)

    def rows(self, layer: Qwen3DecoderLayer, hidden: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """The same layer with norms and products apart."""
        attention, mlp = layer.self_attn, layer.mlp
        norm_1, norm_2 = layer.input_layernorm, layer.post_attention_layernorm
        normed, _ = kernels.add_rms_norm(hidden, None, norm_1.weight, norm_1.eps, pdl=True)
        out = self.attend(layer, product(normed, attention.qkv_proj.weight), step)
        if isinstance(self.backend, TritonBackend):
            assert self.backend.workspace is not None
            kernels.merge_splits(self.backend.workspace, step.context_lens, out, self.num_kv_heads, pdl=True)
        hidden = product(out.flatten(1), attention.o_proj.weight, hidden)
        normed, _ = kernels.add_rms_norm(hidden, None, norm_2.weight, norm_2.eps, pdl=True)
        if len(hidden) <= SKINNY_ROWS:
            act = kernels.gate_up_silu(normed, mlp.gate_up_proj.weight, pdl=True)
        else:
            act = kernels.silu_and_mul(F.linear(normed, mlp.gate_up_proj.weight), pdl=True)
        return product(act, mlp.down_proj.weight, hidden)

    def attend(self, layer: Qwen3DecoderLayer, qkv: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """[N, heads, head_dim]; with the Triton backend still in pieces when sequences were split."""
        attention = layer.self_attn
        q_norm, k_norm, attn = attention.q_norm, attention.k_norm, attention.attn
        norms = (q_norm.weight, k_norm.weight, q_norm.eps)
        if isinstance(self.backend, TritonBackend):
            assert step.block_tables is not None and self.backend.workspace is not None
            return kernels.rope_store_attend(
                qkv, *norms, self.cos_sin, step.positions, step.slot_mapping, attn.k_cache, attn.v_cache,
                step.block_tables, step.context_lens, self.backend.scale, self.num_heads, self.backend.workspace,
                pdl=True,
            )  # fmt: skip
        q, _, _ = kernels.qk_norm_rope_store(
            qkv, *norms, self.cos_sin, step.positions, step.slot_mapping, attn.k_cache, attn.v_cache,
            self.num_heads, self.num_kv_heads, attention.head_dim, keep_k=False, pdl=True,
        )  # fmt: skip
        return self.backend.decode(q, attn.k_cache, attn.v_cache, step)
