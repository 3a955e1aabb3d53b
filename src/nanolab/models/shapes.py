"""The shapes of the teaching models: what goes into config.json, and nothing about weights.

A `ModelShape` is the whole description of a synthetic Qwen3 checkpoint. `config()` and `generation_config()`
return the two JSON documents exactly as they are written, so that the same shape gives the same bytes with
every version of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

Dtype = Literal["bfloat16", "float32"]
RopeNames = Literal["old", "new"]


@dataclass(frozen=True)
class ModelShape:
    """A Qwen3 dense model; field names are those of transformers' Qwen3Config.

    `rope_names` chooses how config.json spells the rope base: "old" is the top-level `rope_theta` and
    `torch_dtype` of the published checkpoint (read by transformers 4 and 5), "new" is what transformers 5
    saves.
    """

    preset: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]  # the first one ends a turn; all of them end a generation
    bos_token_id: int
    memory_ids: tuple[int, int]  # half-open range of the ids that the last MLP proposes (see weights.py)
    regular_ids: int  # ids below this are ordinary text; the rest are markers and padding rows
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    dtype: Dtype = "bfloat16"
    rope_names: RopeNames = "old"
    stored_head: bool = False  # write lm_head.weight although it is tied

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"{self.num_attention_heads} query heads do not divide among {self.num_key_value_heads} KV heads"
            )
        if self.dtype not in ("bfloat16", "float32"):
            raise ValueError(f"dtype {self.dtype!r}: weights are written as bfloat16 or float32")
        if not 0 <= self.memory_ids[0] < self.memory_ids[1] <= self.regular_ids <= self.vocab_size:
            raise ValueError(
                f"memory ids {self.memory_ids} must lie below regular_ids {self.regular_ids}, "
                f"and those within the vocabulary of {self.vocab_size}"
            )

    @property
    def q_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    def config(self) -> dict[str, Any]:
        """config.json."""
        if self.rope_names == "old":
            rope: dict[str, Any] = {"rope_scaling": None, "rope_theta": int(self.rope_theta), "torch_dtype": self.dtype}
        else:
            parameters = {"rope_theta": self.rope_theta, "rope_type": "default"}
            rope = {"rope_parameters": parameters, "dtype": self.dtype}
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_ids[0],
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "max_window_layers": self.num_hidden_layers,
            "model_type": "qwen3",
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "rms_norm_eps": self.rms_norm_eps,
            "sliding_window": None,
            "tie_word_embeddings": self.tie_word_embeddings,
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": self.vocab_size,
            **rope,
        }

    def generation_config(self) -> dict[str, Any]:
        """generation_config.json: the ids that end a generation, and the sampling defaults."""
        return {
            "bos_token_id": self.bos_token_id,
            "do_sample": True,
            "eos_token_id": list(self.eos_token_ids),
            "pad_token_id": self.bos_token_id,
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
        }


# Head dimension 64: the flash-attention kernels of the GPU path cover 64 and 128. As in the real model, q_size
# differs from hidden_size, so that code which mixes the two up fails on the small model already.
TINY = ModelShape(
    preset="tiny",
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    vocab_size=512,
    max_position_embeddings=4096,
    eos_token_ids=(258, 256),
    bos_token_id=256,
    memory_ids=(32, 127),  # printable ASCII, so that what it writes can be read on a terminal
    regular_ids=256,
)

# Values of Qwen/Qwen3-0.6B's config.json. The published file stores lm_head.weight beside the tied embedding.
QWEN3_0_6B = ModelShape(
    preset="qwen3-0.6b-shape",
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151_936,
    max_position_embeddings=40_960,
    eos_token_ids=(151_645, 151_643),
    bos_token_id=151_643,
    memory_ids=(256, 40_000),  # whole words and syllables: past the single bytes, before the rare tail
    regular_ids=151_643,
    stored_head=True,
)

PRESETS: dict[str, ModelShape] = {shape.preset: shape for shape in (TINY, QWEN3_0_6B)}


def with_overrides(shape: ModelShape, overrides: dict[str, Any]) -> ModelShape:
    """The shape with some fields replaced; an unknown field is an error that lists the known ones."""
    unknown = sorted(set(overrides) - set(ModelShape.__dataclass_fields__))
    if unknown:
        known = ", ".join(sorted(ModelShape.__dataclass_fields__))
        raise ValueError(f"unknown model field {unknown[0]!r}; known: {known}")
    return replace(shape, **overrides)
