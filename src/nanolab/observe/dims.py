"""The numbers of a model's config.json that shapes are made of; read without transformers or torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanolab.errors import LabError


@dataclass(frozen=True)
class ModelDims:
    """Sizes of a dense Qwen3 model; `dtype` is the one its weights are stored in."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    dtype: str

    @property
    def q_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def model_dims(model: Path) -> ModelDims:
    """Read `model`/config.json; LabError names what is missing from it."""
    path = model / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(
            f"{path} cannot be read ({error}); make or download the model again, see scripts/e2e/make_model.py"
        ) from error
    config["dtype"] = config.get("dtype") or config.get("torch_dtype") or "float32"
    config.setdefault("head_dim", config.get("hidden_size", 0) // max(1, config.get("num_attention_heads", 1)))
    names = list(ModelDims.__dataclass_fields__)
    if missing := [name for name in names if name not in config]:
        raise LabError(f"{path} has no {missing[0]}; it is not the config of a dense Qwen3 model")
    return ModelDims(**{name: config[name] for name in names})
