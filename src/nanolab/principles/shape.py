"""The sizes of a model that decide its memory and the shapes of its matrices."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """Defaults: Qwen3-0.6B's published config.json, in bfloat16."""

    num_layers: int = 28
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_q_heads: int = 16
    num_kv_heads: int = 8
    head_dim: int = 128
    vocab_size: int = 151_936
    bytes_per_value: int = 2


QWEN3_0_6B = ModelShape()
