"""The decode step of Qwen3 on one GPU, with few kernel launches.

The same mathematics as `qwen3.py`, over the same weights; only the grouping of operations differs. At small batch a
decode step is a few hundred tiny kernels, and what costs time is their number and the weights' bytes, not the
arithmetic. With one row, a layer takes six launches:

  1  norm + QKV projection                   4  output projection + residual
  2  QK-norm + RoPE + KV store + attention   5  norm + gate and up projections + silu(gate) * up
  3  merge of the attention's pieces         6  down projection + residual

With more rows the norms are launches of their own, and above `SKINNY_ROWS` the products go to cuBLAS. "Where the
time goes" in the manual has what each step bought.
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
            hidden = self.layer(layer, hidden, step)
        norm = self.final_norm
        if len(hidden) == 1:
            return kernels.norm_linear(hidden, norm.weight, norm.eps, self.head.weight, pdl=True)
        normed, _ = kernels.add_rms_norm(hidden, None, norm.weight, norm.eps, pdl=True)
        return F.linear(normed, self.head.weight)

    def layer(self, layer: Qwen3DecoderLayer, hidden: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """[N, hidden] -> [N, hidden]"""
        attention, mlp = layer.self_attn, layer.mlp
        qkv = self.norm_and_project(hidden, layer.input_layernorm, attention.qkv_proj.weight)
        out = self.attend(layer, qkv, step)
        hidden = product(out.flatten(1), attention.o_proj.weight, hidden)
        act = self.norm_and_gate(hidden, layer.post_attention_layernorm, mlp.gate_up_proj.weight)
        return product(act, mlp.down_proj.weight, hidden)

    def norm_and_project(self, hidden: torch.Tensor, norm: RMSNorm, weight: torch.Tensor) -> torch.Tensor:
        if len(hidden) == 1:  # every program normalises the one row again, which is cheaper than a launch
            return kernels.norm_linear(hidden, norm.weight, norm.eps, weight, pdl=True)
        normed, _ = kernels.add_rms_norm(hidden, None, norm.weight, norm.eps, pdl=True)
        return product(normed, weight)

    def norm_and_gate(self, hidden: torch.Tensor, norm: RMSNorm, weight: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of the normalised rows."""
        if len(hidden) == 1:
            return kernels.norm_gate_up_silu(hidden, norm.weight, norm.eps, weight, pdl=True)
        normed, _ = kernels.add_rms_norm(hidden, None, norm.weight, norm.eps, pdl=True)
        if len(hidden) <= SKINNY_ROWS:
            return kernels.gate_up_silu(normed, weight, pdl=True)
        return kernels.silu_and_mul(F.linear(normed, weight), pdl=True)

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
