"""Qwen3, dense: embedding, a stack of pre-norm decoder layers, a final norm, a head.

Mathematically a layer is h = x + Attn(Norm1(x)), y = h + MLP(Norm2(h)). Here `hidden` (the last sublayer's output)
and `residual` (the sum so far) travel apart, and each norm adds them first: one pass over memory instead of two.
"""

from typing import ClassVar

import torch
from torch import nn

from ..config import Config, rope_parameters
from ..layers import kernels
from ..layers.activation import silu_and_mul
from ..layers.attention import Attention, AttentionBackend
from ..layers.embed_head import ParallelLMHead, VocabParallelEmbedding
from ..layers.layernorm import RMSNorm
from ..layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from ..layers.parallel import TensorParallel
from ..layers.rotary_embedding import RotaryEmbedding
from ..utils.context import StepInputs


class Qwen3Attention(nn.Module):
    def __init__(self, config: Config, rotary: RotaryEmbedding, backend: AttentionBackend, tp: TensorParallel) -> None:
        super().__init__()
        hf, self.head_dim = config.hf_config, config.head_dim
        heads, kv_heads = hf.num_attention_heads, hf.num_key_value_heads
        self.num_heads, self.num_kv_heads = tp.divide(heads, "query heads"), tp.divide(kv_heads, "KV heads")
        self.qkv_proj = QKVParallelLinear(hf.hidden_size, self.head_dim, heads, kv_heads, tp)
        self.q_norm = RMSNorm(self.head_dim, hf.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, hf.rms_norm_eps)
        self.rotary = rotary
        self.attn = Attention(backend)
        self.o_proj = RowParallelLinear(heads * self.head_dim, hf.hidden_size, tp)

    def forward(self, hidden: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]"""
        qkv = self.qkv_proj(hidden)  # [T, (heads + 2 * kv_heads) * head_dim]
        if qkv.is_cuda:
            q, k, v = self.norm_rotate_store(qkv, step)
        else:
            parts = qkv.split(list(self.qkv_proj.parts.values()), dim=-1)
            q, k, v = (x.unflatten(-1, (-1, self.head_dim)) for x in parts)  # [T, heads or kv_heads, head_dim]
            q = self.rotary(step.positions, self.q_norm(q))
            k = self.rotary(step.positions, self.k_norm(k))
            self.attn.store(k, v, step)
        return self.o_proj(self.attn(q, k, v, step).flatten(1))

    def norm_rotate_store(self, qkv: torch.Tensor, step: StepInputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The CPU path's operations between the projection and attention, in one kernel."""
        k_cache, v_cache = (self.attn.k_cache, self.attn.v_cache) if self.attn.has_cache else (None, None)
        q, k, v = kernels.qk_norm_rope_store(
            qkv, self.q_norm.weight, self.k_norm.weight, self.q_norm.eps, self.rotary.cos_sin, step.positions,
            step.slot_mapping, k_cache, v_cache, self.num_heads, self.num_kv_heads, self.head_dim,
        )  # fmt: skip
        assert k is not None
        return q, k, v


class Qwen3MLP(nn.Module):
    def __init__(self, hidden: int, intermediate: int, tp: TensorParallel) -> None:
        super().__init__()
        self.gate_up_proj = ColumnParallelLinear(hidden, {"gate": intermediate, "up": intermediate}, tp)
        self.down_proj = RowParallelLinear(intermediate, hidden, tp)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]"""
        return self.down_proj(silu_and_mul(self.gate_up_proj(hidden)))


class Qwen3DecoderLayer(nn.Module):
    def __init__(self, config: Config, rotary: RotaryEmbedding, backend: AttentionBackend, tp: TensorParallel) -> None:
        super().__init__()
        hf = config.hf_config
        self.input_layernorm = RMSNorm(hf.hidden_size, hf.rms_norm_eps)
        self.self_attn = Qwen3Attention(config, rotary, backend, tp)
        self.post_attention_layernorm = RMSNorm(hf.hidden_size, hf.rms_norm_eps)
        self.mlp = Qwen3MLP(hf.hidden_size, hf.intermediate_size, tp)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, step: StepInputs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, residual = self.input_layernorm.add_and_norm(hidden, residual)
        hidden = self.self_attn(hidden, step)
        hidden, residual = self.post_attention_layernorm.add_and_norm(hidden, residual)
        return self.mlp(hidden), residual


class Qwen3Model(nn.Module):
    def __init__(self, config: Config, backend: AttentionBackend, tp: TensorParallel) -> None:
        super().__init__()
        hf = config.hf_config
        rotary = RotaryEmbedding(config.head_dim, config.max_model_len, rope_parameters(hf)["rope_theta"])
        self.embed_tokens = VocabParallelEmbedding(hf.vocab_size, hf.hidden_size, tp)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(config, rotary, backend, tp) for _ in range(hf.num_hidden_layers))
        self.norm = RMSNorm(hf.hidden_size, hf.rms_norm_eps)

    def forward(self, step: StepInputs) -> torch.Tensor:
        """[T] ids -> [T, hidden]"""
        hidden, residual = self.embed_tokens(step.input_ids), None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, step)
        return self.norm.add_and_norm(hidden, residual)[0]


class Qwen3ForCausalLM(nn.Module):
    # checkpoint name -> (packed module here, which of its row ranges)
    packed_modules_mapping: ClassVar = {
        "q_proj": ("qkv_proj", "q"),
        "k_proj": ("qkv_proj", "k"),
        "v_proj": ("qkv_proj", "v"),
        "gate_proj": ("gate_up_proj", "gate"),
        "up_proj": ("gate_up_proj", "up"),
    }

    def __init__(self, config: Config, backend: AttentionBackend, tp: TensorParallel) -> None:
        super().__init__()
        hf = config.hf_config
        self.model = Qwen3Model(config, backend, tp)
        self.lm_head = ParallelLMHead(hf.vocab_size, hf.hidden_size, tp)
        self.tied = bool(hf.tie_word_embeddings)
        if self.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, step: StepInputs) -> torch.Tensor:
        """[T, hidden] for the step's input positions."""
        return self.model(step)

    def compute_logits(self, hidden: torch.Tensor, step: StepInputs) -> torch.Tensor | None:
        """[N, vocab]: one row per sequence, from its last input position; None on ranks other than 0."""
        if step.is_prefill:
            hidden = hidden[step.last_rows]
        return self.lm_head(hidden)
