"""Make a teaching model directory: all of it, or nothing.

The directory is built beside its destination and renamed at the end, so a killed run leaves no half model.
An existing directory is replaced only when it is itself a teaching model (it carries synthetic.json).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanolab.errors import LabError

from . import byte_tokenizer
from .directory import MARK, read_json
from .safetensors_file import ITEM_SIZE, write_weights
from .shapes import PRESETS, TINY, ModelShape, with_overrides
from .weights import SyntheticWeights

NOTE = "Synthetic weights for teaching and measuring; they answer no question. Made by make_model.py."
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
Progress = Callable[[int], object]


def make_tiny(directory: Path | str, seed: int = 0, **overrides: Any) -> Path:
    """The `tiny` model in `directory`; `overrides` are fields of ModelShape, or `shards`."""
    shards = int(overrides.pop("shards", 1))
    return make_model(with_overrides(TINY, overrides), Path(directory), seed=seed, shards=shards)


def make_model(
    shape: ModelShape | str,
    directory: Path,
    *,
    seed: int = 0,
    shards: int = 1,
    tokenizer: Path | None = None,
    progress: Progress = lambda _: None,
) -> Path:
    """Write a synthetic model of `shape` (a preset's name or a ModelShape) and return its directory.

    `tokenizer` is a directory whose tokenizer files are copied; without it the byte tokenizer is written.
    `progress` receives the bytes of weights as they are written (of `weight_bytes(shape)` in all).
    """
    shape = PRESETS[shape] if isinstance(shape, str) else shape
    directory = Path(directory).absolute()
    _check_destination(directory)
    _check_arguments(shape, seed, shards, tokenizer)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _check_space(directory.parent, weight_bytes(shape))
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as scratch:
            building = Path(scratch) / "new"
            building.mkdir()
            _write(building, shape, seed, shards, tokenizer, progress)
            if directory.exists():
                os.replace(directory, Path(scratch) / "old")
            os.replace(building, directory)
    except OSError as error:
        raise LabError(f"{directory} cannot be written: {error}. Give another --out, or free some space.") from error
    return directory


def weight_bytes(shape: ModelShape) -> int:
    """Bytes of all tensors of the shape."""
    width = ITEM_SIZE["BF16" if shape.dtype == "bfloat16" else "F32"]
    return sum(tensor.count for tensor in SyntheticWeights(shape, 0).tensors()) * width


def _write(
    building: Path, shape: ModelShape, seed: int, shards: int, tokenizer: Path | None, progress: Progress
) -> None:
    _dump(building / "config.json", shape.config())
    _dump(building / "generation_config.json", shape.generation_config())
    if tokenizer is None:
        # A vocabulary larger than the tokenizer's is what the real model has too: its last rows stay unused.
        byte_tokenizer.write(building, min(shape.vocab_size, TINY.vocab_size), shape.max_position_embeddings)
    else:
        for name in TOKENIZER_FILES:
            shutil.copyfile(tokenizer / name, building / name)
    write_weights(building, list(SyntheticWeights(shape, seed).tensors()), shape.dtype, shards, progress)
    _dump(building / MARK, {"preset": shape.preset, "seed": seed, "note": NOTE})


def _check_destination(directory: Path) -> None:
    if not directory.exists() or (directory / MARK).is_file():
        return
    if directory.is_dir() and not any(directory.iterdir()):
        return
    raise LabError(
        f"{directory} exists and is not a teaching model (no {MARK} in it): it will not be replaced. "
        "Give another --out, or move it away first."
    )


def _check_space(parent: Path, needed: int) -> None:
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise LabError(
            f"{parent} has {free / 2**30:.2f} GiB free; the weights need {needed / 2**30:.2f} GiB. "
            "Free some space, or give an --out on another disk."
        )


def _check_arguments(shape: ModelShape, seed: int, shards: int, tokenizer: Path | None) -> None:
    if not 0 <= seed < 2**63:
        raise LabError(f"seed {seed}: give a whole number from 0 to 2**63 - 1.")
    count = sum(1 for _ in SyntheticWeights(shape, seed).tensors())
    if not 1 <= shards <= count:
        raise LabError(f"{shards} shards: give 1 to {count}, the number of tensors.")
    if tokenizer is not None:
        _check_tokenizer(shape, tokenizer)
    if shape.vocab_size <= max(shape.eos_token_ids):
        raise LabError(
            f"vocabulary of {shape.vocab_size}: it must hold the markers, up to id {max(shape.eos_token_ids)}."
        )


def _check_tokenizer(shape: ModelShape, tokenizer: Path) -> None:
    missing = [name for name in TOKENIZER_FILES if not (tokenizer / name).is_file()]
    if missing:
        raise LabError(
            f"{tokenizer} has no {missing[0]}: --tokenizer wants a directory with {' and '.join(TOKENIZER_FILES)}."
        )
    document = read_json(tokenizer / "tokenizer.json")
    ids = [*document["model"]["vocab"].values(), *(token["id"] for token in document["added_tokens"])]
    if max(ids) >= shape.vocab_size:
        raise LabError(
            f"the tokenizer's ids go up to {max(ids):,} and {shape.preset} has {shape.vocab_size:,} embedding rows: "
            "its text could not be embedded. Leave --tokenizer out, or choose --preset qwen3-0.6b-shape."
        )


def _dump(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
