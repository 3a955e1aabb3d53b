"""Reads safetensors into the model, and refuses a checkpoint that does not fit it.

Every parameter of the model must be filled and every tensor of the checkpoint used, with equal shapes: a checkpoint
that only nearly matches would run and produce nonsense.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ModelError
from ..layers.embed_head import VocabParallelEmbedding
from ..layers.linear import ColumnParallelLinear, RowParallelLinear, fill
from ..models.qwen3 import Qwen3ForCausalLM


def load_model(model: Qwen3ForCausalLM, directory: str | Path) -> None:
    """Fill `model` (this rank's part of it) from the safetensors files of `directory`."""
    missing = expected_tensors(model)
    for name, tensor in read_tensors(Path(directory)):
        if model.tied and name == "lm_head.weight":
            continue
        if name not in missing:
            raise ModelError(
                f"{directory} holds a tensor {name} that this architecture has no place for; config and weights differ"
            )
        missing.discard(name)
        load_tensor(model, name, tensor)
    if missing:
        some = ", ".join(sorted(missing)[:3])
        raise ModelError(
            f"{directory} lacks {len(missing)} tensors, among them {some}; the weights are incomplete: fetch them again"
        )


def expected_tensors(model: Qwen3ForCausalLM) -> set[str]:
    """Checkpoint names that fill every parameter of `model`."""
    names = set()
    for name, _ in model.named_parameters():
        sources = [source for source, (packed, _) in model.packed_modules_mapping.items() if f".{packed}." in name]
        packed_name = model.packed_modules_mapping[sources[0]][0] if sources else ""
        names |= {name.replace(packed_name, source) for source in sources} or {name}
    return names


def load_tensor(model: Qwen3ForCausalLM, name: str, tensor: torch.Tensor) -> None:
    """Put one checkpoint tensor where it belongs: packed rows, a rank's shard, or a plain copy."""
    path, _, leaf = name.rpartition(".")
    parent, _, child = path.rpartition(".")
    packed, part = model.packed_modules_mapping.get(child, (child, None))
    module = model.get_submodule(f"{parent}.{packed}" if parent else packed)
    try:
        if part is not None and isinstance(module, ColumnParallelLinear):
            module.load_shard(tensor, part)
        elif isinstance(module, RowParallelLinear | VocabParallelEmbedding):
            module.load(tensor)
        else:
            fill(module.get_parameter(leaf).data, tensor)
    except ModelError as error:
        raise ModelError(
            f"tensor {name} contradicts config.json: {error}; fetch config and weights of one revision"
        ) from error


def read_tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a single-file or sharded checkpoint, file by file."""
    for path in checkpoint_files(directory):
        try:
            with safe_open(path, "pt", "cpu") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    yield name, file.get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{path} is damaged or truncated ({error}); delete it and fetch it again") from error


def checkpoint_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        files = [directory / name for name in sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))]
        if absent := [path.name for path in files if not path.is_file()]:
            raise ModelError(f"{index} names {', '.join(absent)}, which {directory} lacks; finish the download")
        return files
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{directory} holds no .safetensors file; fetch the weights or make a teaching model")
    return files
