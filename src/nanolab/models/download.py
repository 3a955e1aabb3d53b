"""Bring Qwen3-0.6B at its pinned revision into a directory, and prove that it is that model.

`download` fetches and verifies bytes; `check_download` reads what arrived, without a network, and compares it
with the constants that the manual's numbers rest on (the `qwen3-0.6b-shape` of shapes.py). RoPE settings are
reported as they came, never edited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanolab.errors import LabError

from .directory import MARK, PARTIAL, check_model_dir, read_json
from .hub import HubRevision
from .safetensors_file import SINGLE_NAME
from .shapes import QWEN3_0_6B

REPO = "Qwen/Qwen3-0.6B"
REVISION = "c1899de289a04d12100db370d81485cdf75e47ca"
DESCRIPTION_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
CHECKED = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)


@dataclass(frozen=True)
class Difference:
    """A value of config.json that is not the one the manual was written for."""

    name: str
    observed: Any
    expected: Any


def download(
    directory: Path, hub: HubRevision, *, weights: bool, report: Callable[[str], object] = lambda _: None
) -> list[str]:
    """Fetch config and tokenizer, and the weights if asked; returns the names of the files in place.

    Files already there and right are kept; an interrupted one is continued. `report` receives a line for each.
    """
    if (directory / MARK).is_file():
        raise LabError(
            f"{directory} holds a teaching model ({MARK} is in it). Give another --model, for example "
            "models/Qwen3-0.6B, or remove that directory first."
        )
    names = [*DESCRIPTION_FILES, *([SINGLE_NAME] if weights else [])]
    for name in names:
        remote = hub.describe(name)
        fetched = hub.fetch(remote, directory)
        report(f"{name}  {remote.size:,} bytes  {'fetched' if fetched else 'already there'}, hash {remote.digest}")
    partial = directory / PARTIAL
    if partial.is_dir() and not any(partial.iterdir()):
        partial.rmdir()
    return names


def check_download(directory: Path, *, weights: bool) -> list[Difference]:
    """Differences from the pinned model's constants; a LabError if a file is missing, torn or of another kind."""
    if weights:
        check_model_dir(directory)
    config, expected = read_json(directory / "config.json"), QWEN3_0_6B.config()
    found = {name: config.get(name) for name in CHECKED} | {"dtype": stored_dtype(config)}
    wanted = {name: expected[name] for name in CHECKED} | {"dtype": QWEN3_0_6B.dtype}
    return [Difference(name, found[name], wanted[name]) for name in wanted if found[name] != wanted[name]]


def stored_dtype(config: dict[str, Any]) -> Any:
    """The dtype of a config.json under its old or its new name."""
    return config.get("torch_dtype", config.get("dtype"))


def rope_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Every RoPE setting of a config.json, as written."""
    return {name: value for name, value in config.items() if name.startswith("rope_")}


def tokenizer_facts(directory: Path) -> tuple[str, int]:
    """Class name and length of the tokenizer as transformers loads it, local files only."""
    from transformers import AutoConfig, AutoTokenizer

    AutoConfig.from_pretrained(directory, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    return type(tokenizer).__name__, len(tokenizer)
