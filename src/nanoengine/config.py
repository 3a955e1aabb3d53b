"""The engine's options: one frozen object, validated once, read everywhere.

An option's choices stand beside its default, so that adding an option is adding a line.
"""

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .errors import ConfigError, ModelError


def option(default: str, *choices: str) -> Any:
    """A string option that takes one of `choices`."""
    return field(default=default, metadata={"choices": choices})


@dataclass(frozen=True)
class Config:
    """Options of one engine; sizes are tokens, sequences or blocks as their names say.

    `hf_config`, `eos` and, when it was -1, `num_kvcache_blocks` are filled in from the model and the machine.
    """

    model: str
    max_num_batched_tokens: int = 16384
    max_num_seqs: int = 512
    scheduling_policy: str = option("prefill_first", "prefill_first", "balanced")
    max_model_len: int = 4096
    gpu_memory_utilization: float = 0.9
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    run_ahead: bool = True
    kvcache_block_size: int = 256
    num_kvcache_blocks: int = -1
    dist_init_method: str = "tcp://127.0.0.1:2333"
    shm_name: str = "nanoengine"
    device: str = option("auto", "auto", "cuda", "cpu")
    dtype: str = option("auto", "auto", "bfloat16", "float16", "float32")
    attention_backend: str = option("auto", "auto", "flash_attn", "triton", "torch")
    hf_config: Any = field(default=None, repr=False)
    eos: tuple[int, ...] = ()

    @classmethod
    def create(cls, model: str | Path, **options: Any) -> "Config":
        """Validate `options`, read the model's config.json, and settle every `auto`."""
        known = {f.name for f in dataclasses.fields(cls)} - {"model", "hf_config", "eos"}
        if unknown := sorted(options.keys() - known):
            raise ConfigError(f"unknown option {', '.join(unknown)}; this engine knows: {', '.join(sorted(known))}")
        config = cls(str(model), **options)
        config._check_numbers()
        hf_config = read_hf_config(Path(model))
        return config._settle(hf_config)

    def replace(self, **changes: Any) -> "Config":
        return dataclasses.replace(self, **changes)

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def head_dim(self) -> int:
        hf = self.hf_config
        return getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads

    @property
    def num_kv_heads(self) -> int:
        """KV heads held by one rank."""
        return self.hf_config.num_key_value_heads // self.tensor_parallel_size

    @property
    def max_blocks_per_seq(self) -> int:
        return -(-self.max_model_len // self.kvcache_block_size)

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of one block on one rank: K and V, all layers."""
        per_token = 2 * self.hf_config.num_hidden_layers * self.num_kv_heads * self.head_dim
        return per_token * self.torch_dtype.itemsize * self.kvcache_block_size

    def _check_numbers(self) -> None:
        for f in dataclasses.fields(self):
            value, choices = getattr(self, f.name), f.metadata.get("choices")
            if choices and value not in choices:
                raise ConfigError(f"{f.name} is {value!r}; choose one of {', '.join(choices)}")
        at_least_one = (
            "max_num_batched_tokens",
            "max_num_seqs",
            "max_model_len",
            "tensor_parallel_size",
            "kvcache_block_size",
        )
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_kvcache_blocks == 0 or self.num_kvcache_blocks < -1:
            raise ConfigError(
                f"num_kvcache_blocks is {self.num_kvcache_blocks}; give at least 1, or -1 to size it from memory"
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}; it is a share of the card in (0, 1]"
            )
        if not re.fullmatch(r"tcp://[^:/]+:\d+", self.dist_init_method):
            raise ConfigError(f"dist_init_method is {self.dist_init_method!r}; it has the form tcp://127.0.0.1:2333")
        if not re.fullmatch(r"[\w.-]+", self.shm_name):
            raise ConfigError(f"shm_name is {self.shm_name!r}; it is a file name of letters, digits, '_', '.' and '-'")

    def _settle(self, hf_config: Any) -> "Config":
        """Replace every `auto` by what this machine and this model give."""
        heads, kv_heads, tp = hf_config.num_attention_heads, hf_config.num_key_value_heads, self.tensor_parallel_size
        if heads % tp or kv_heads % tp:
            raise ConfigError(
                f"tensor_parallel_size is {tp}, but {heads} query heads and {kv_heads} KV heads must both divide by it"
            )
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device is 'cuda', but PyTorch sees no CUDA device; use device='cpu' or check the driver")
        if device == "cuda" and torch.cuda.device_count() < tp:
            raise ConfigError(
                f"tensor_parallel_size is {tp}, but {torch.cuda.device_count()} CUDA device(s) are visible; "
                "lower it, or let CUDA_VISIBLE_DEVICES show more cards"
            )
        dtype = self.dtype
        if dtype == "auto":
            declared = getattr(hf_config, "dtype", None) or getattr(hf_config, "torch_dtype", None) or torch.float32
            dtype = str(declared).removeprefix("torch.")
        max_len = min(self.max_model_len, hf_config.max_position_embeddings)
        return self.replace(
            hf_config=hf_config, device=device, dtype=dtype, max_model_len=max_len, eos=read_eos(self.model, hf_config)
        )


def read_hf_config(model: Path) -> Any:
    """The transformers config of a Qwen3-family dense model directory; ModelError says what is wrong with another."""
    path = model / "config.json"
    if not model.is_dir():
        raise ModelError(f"model directory {model} does not exist; download a model or make a teaching model first")
    if not path.is_file():
        raise ModelError(f"{model} holds no config.json, so the download or the build did not finish; run it again")
    try:
        declared = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON ({error}); fetch the model again") from error
    if not isinstance(declared, dict) or declared.get("model_type") != "qwen3":
        found = declared.get("model_type") if isinstance(declared, dict) else type(declared).__name__
        raise ModelError(
            f"{path} declares model_type {found!r}; this engine runs 'qwen3' (dense Qwen3, such as Qwen3-0.6B)"
        )
    from transformers import AutoConfig

    hf_config = AutoConfig.from_pretrained(str(model), local_files_only=True)
    if getattr(hf_config, "hidden_act", "silu") != "silu":
        raise ModelError(f"{path} asks for hidden_act {hf_config.hidden_act!r}; this engine implements 'silu'")
    if getattr(hf_config, "use_sliding_window", False):
        raise ModelError(f"{path} asks for sliding-window attention, which this engine does not implement")
    rope_type = rope_parameters(hf_config).get("rope_type", "default")
    if rope_type != "default":
        raise ModelError(f"{path} asks for rope_type {rope_type!r}; this engine implements 'default'")
    return hf_config


def rope_parameters(hf_config: Any) -> dict[str, Any]:
    """RoPE settings under their new name (`rope_parameters`, transformers 5) or their old ones."""
    settings = dict(getattr(hf_config, "rope_parameters", None) or getattr(hf_config, "rope_scaling", None) or {})
    settings.setdefault("rope_theta", getattr(hf_config, "rope_theta", 10000.0))
    if "type" in settings:
        settings.setdefault("rope_type", settings["type"])
    return settings


def read_eos(model: str, hf_config: Any) -> tuple[int, ...]:
    """Every end-of-sequence id: generation_config.json may list several, config.json usually names one."""
    path = Path(model) / "generation_config.json"
    eos = json.loads(path.read_text("utf-8")).get("eos_token_id") if path.is_file() else None
    if eos is None:
        eos = getattr(hf_config, "eos_token_id", None)
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)
