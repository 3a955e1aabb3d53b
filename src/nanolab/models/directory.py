"""What lies in a model directory: is it whole, which model is it, is it synthetic.

Everything here looks at files and headers; no tensor is loaded. Problems are LabErrors that name the file, what
was found, what was expected and the command that mends it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from nanolab.errors import LabError

from .safetensors_file import INDEX_NAME, SINGLE_NAME, SafetensorsError, read_header

MARK = "synthetic.json"  # a teaching model carries it: {"preset", "seed", "note"}
PARTIAL = ".incomplete"  # folder of a download's unfinished files
REQUIRED = ("config.json", "tokenizer.json", "tokenizer_config.json")
MODEL_TYPE = "qwen3"


def describe_model(directory: Path | str) -> dict[str, Any]:
    """The `model` field of a result block: {name, config_sha256, weights_sha256, synthetic}.

    `weights_sha256` is the hash of model.safetensors, or, for shards, of their hashes in order of name.
    """
    directory = Path(directory)
    check_model_dir(directory)
    mark = directory / MARK
    synthetic = read_json(mark) if mark.is_file() else {}
    return {
        "name": str(synthetic.get("preset", directory.resolve().name)),
        "config_sha256": file_sha256(directory / "config.json"),
        "weights_sha256": _weights_sha256(weight_files(directory)),
        "synthetic": mark.is_file(),
    }


def check_model_dir(directory: Path | str) -> None:
    """LabError unless `directory` holds a whole Qwen3 model: config, tokenizer, complete safetensors files."""
    directory = Path(directory)
    if not directory.is_dir():
        seen = "is not a directory" if directory.exists() else "does not exist"
        raise LabError(f"model directory {directory} {seen}. {_obtain(directory)}")
    for name in REQUIRED:
        if not (directory / name).is_file():
            raise LabError(f"{directory} has no {name}: it is not a whole model. {_finish(directory)}")
        read_json(directory / name)  # a file cut short is named here, not deep inside a library
    check_architecture(directory)
    for path in weight_files(directory):
        _check_container(path)


def check_architecture(directory: Path) -> None:
    """LabError unless config.json describes a dense Qwen3 model."""
    config = read_json(directory / "config.json")
    if config.get("model_type") != MODEL_TYPE:
        raise LabError(
            f"{directory}/config.json declares model_type {config.get('model_type')!r}; the lab runs "
            f"{MODEL_TYPE!r}, dense models such as Qwen3-0.6B. {_obtain(directory)}"
        )


def weight_files(directory: Path) -> tuple[Path, ...]:
    """The safetensors files of a checkpoint, in order of name, all present."""
    index = directory / INDEX_NAME
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise LabError(f"{index} has no weight_map, which names each tensor's file. {_finish(directory)}")
        files = tuple(directory / name for name in sorted({str(name) for name in weight_map.values()}))
    else:
        files = tuple(sorted(directory.glob("*.safetensors")))
    if not files:
        raise LabError(f"{directory} holds no weights: neither {SINGLE_NAME} nor an index. {_finish(directory)}")
    absent = [path.name for path in files if not path.is_file()]
    if absent:
        raise LabError(
            f"{index} names {len(files)} files, of which {len(absent)} are missing: {', '.join(absent)}. "
            f"{_finish(directory)}"
        )
    return files


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; anything else is a LabError that names the file."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise LabError(f"{path} is not valid JSON ({error}). {_finish(path.parent)}") from error
    if not isinstance(document, dict):
        raise LabError(f"{path} holds a {type(document).__name__}, not an object. {_finish(path.parent)}")
    return document


def file_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_container(path: Path) -> None:
    try:
        read_header(path)
    except SafetensorsError as error:
        raise LabError(
            f"{path} is not a whole safetensors file: {error}. Delete it, then: {_finish(path.parent)}"
        ) from error


def _weights_sha256(files: tuple[Path, ...]) -> str:
    # Size and time stand in for the content, so that one process hashes 1.5 GB once.
    stats = [path.stat() for path in files]
    return _hash_files(files, tuple((stat.st_size, stat.st_mtime_ns) for stat in stats))


@lru_cache(maxsize=8)
def _hash_files(files: tuple[Path, ...], _stamp: tuple[tuple[int, int], ...]) -> str:
    if len(files) == 1:
        return file_sha256(files[0])
    return hashlib.sha256("".join(map(file_sha256, files)).encode()).hexdigest()


def _obtain(directory: Path) -> str:
    return (
        f"Download the real one: python scripts/e2e/download_model.py --model {directory} --weights; or make a "
        "teaching model, no network needed: python scripts/e2e/make_model.py --preset tiny --out models/tiny"
    )


def _finish(directory: Path) -> str:
    """The command that completes a directory: which one depends on who began it."""
    if (directory / MARK).is_file():
        preset = "tiny"
        with contextlib.suppress(ValueError, KeyError, TypeError):  # the mark itself may be what is torn
            preset = json.loads((directory / MARK).read_text("utf-8"))["preset"]
        return f"Make it again: python scripts/e2e/make_model.py --preset {preset} --out {directory}"
    if (directory / PARTIAL).is_dir():
        return (
            "Its download was interrupted; the same command resumes it: "
            f"python scripts/e2e/download_model.py --model {directory} --weights"
        )
    return _obtain(directory)
