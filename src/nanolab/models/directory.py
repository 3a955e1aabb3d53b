"""What lies in a model directory: is it whole, whose is it, is it synthetic."""

from __future__ import annotations

import hashlib
import json
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

from nanolab.errors import LabError

MARK = "synthetic.json"
INDEX = "model.safetensors.index.json"
NEXT_STEP = (
    "Download the model with `python scripts/e2e/download_model.py --model DIR --weights`, or make a teaching model "
    "with `python scripts/e2e/make_model.py --preset tiny --out DIR`."
)


def describe_model(directory: Path | str) -> dict[str, Any]:
    """The `model` field of a result block: {name, config_sha256, weights_sha256, synthetic}."""
    directory = Path(directory)
    check_model_dir(directory)
    return {
        "name": _name(directory),
        "config_sha256": _file_sha256(directory / "config.json"),
        "weights_sha256": _weights_sha256(tuple(weight_files(directory))),
        "synthetic": (directory / MARK).is_file(),
    }


def check_model_dir(directory: Path | str) -> None:
    """LabError unless the directory holds a whole Qwen3 model: config, tokenizer, complete safetensors files."""
    directory = Path(directory)
    if not directory.is_dir():
        raise LabError(f"model directory {directory} does not exist. {NEXT_STEP}")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if not (directory / name).is_file():
            raise LabError(f"{directory} has no {name}: the download or the build did not finish. {NEXT_STEP}")
    model_type = read_json(directory / "config.json").get("model_type")
    if model_type != "qwen3":
        raise LabError(
            f"{directory}/config.json declares model_type {model_type!r}; the lab runs 'qwen3' (dense Qwen3, such as "
            f"Qwen3-0.6B). {NEXT_STEP}"
        )
    for path in weight_files(directory):
        check_safetensors(path)


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint, all present."""
    index = directory / INDEX
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        files = [directory / str(name) for name in names]
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise LabError(f"{directory} holds no .safetensors file. {NEXT_STEP}")
    if absent := [path.name for path in files if not path.is_file()]:
        raise LabError(
            f"{INDEX} names {', '.join(absent)}, which {directory} lacks. Run the same download again: it resumes."
        )
    return files


def check_safetensors(path: Path) -> None:
    """LabError unless the file's header is readable and the file is as long as the header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        raw = file.read(length) if 0 < length <= size - 8 else b""
    try:
        header = json.loads(raw)
        end = max(int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(
            f"{path} is not a whole safetensors file ({size} bytes). Delete it and fetch it again."
        ) from error
    if size != 8 + length + end:
        raise LabError(
            f"{path} has {size} bytes and its header promises {8 + length + end}. Delete it and fetch it again."
        )


def read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise LabError(f"{path} is not valid JSON ({error}). Fetch the model again.") from error
    if not isinstance(document, dict):
        raise LabError(f"{path} holds a {type(document).__name__}, not an object. Fetch the model again.")
    return document


def _name(directory: Path) -> str:
    """A synthetic model is named by its preset, any other by its directory."""
    if (directory / MARK).is_file():
        return str(read_json(directory / MARK).get("preset", directory.name))
    return directory.resolve().name


def _file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


@lru_cache(maxsize=8)
def _weights_sha256(files: tuple[Path, ...]) -> str:
    """One hash: of the file itself, or, for shards, of their hashes in order of name."""
    if len(files) == 1:
        return _file_sha256(files[0])
    return hashlib.sha256("".join(map(_file_sha256, files)).encode()).hexdigest()
