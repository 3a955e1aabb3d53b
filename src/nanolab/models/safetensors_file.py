"""The safetensors container: write it tensor by tensor, and check one without reading its data.

Format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, the tensors.
Writing here streams, so a 1.5 GB file needs the memory of its largest tensor; reading for computation stays
with the safetensors library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .weights import Tensor, encode

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
ITEM_SIZE = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1},
}
_HEADER_LIMIT = 100_000_000  # the library's own limit
_CODES = {"bfloat16": "BF16", "float32": "F32"}


class SafetensorsError(ValueError):
    """The file is not a whole safetensors file; the message says what was found and what was expected."""


def write_file(path: Path, tensors: Sequence[Tensor], dtype: str, progress: Callable[[int], object]) -> None:
    """Write `tensors` in the order given; `progress` receives the bytes of each as it is written."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.count * ITEM_SIZE[_CODES[dtype]]
        header[tensor.name] = {
            "dtype": _CODES[dtype], "shape": list(tensor.shape), "data_offsets": [start, end],
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data starts on an 8-byte boundary
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            data = encode(tensor.make(), dtype)
            if data.dtype.byteorder == ">":
                raise SafetensorsError("safetensors stores little-endian values")
            file.write(data.reshape(-1).view("u1").data)
            progress(data.nbytes)


def split(tensors: Sequence[Tensor], shards: int) -> list[list[Tensor]]:
    """Cut the list, in order, into `shards` (at most one a tensor) non-empty runs of roughly equal size."""
    total = sum(tensor.count for tensor in tensors)
    groups: list[list[Tensor]] = [[]]
    written = 0
    for i, tensor in enumerate(tensors):
        missing = shards - len(groups)
        full = written * shards >= total * len(groups) or len(tensors) - i <= missing
        if groups[-1] and missing and full:
            groups.append([])
        groups[-1].append(tensor)
        written += tensor.count
    return groups


def write_weights(
    directory: Path, tensors: Sequence[Tensor], dtype: str, shards: int, progress: Callable[[int], object]
) -> None:
    """One model.safetensors, or numbered shards with the index that names each tensor's file."""
    groups = split(tensors, shards)
    if shards == 1:
        write_file(directory / SINGLE_NAME, tensors, dtype, progress)
        return
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        write_file(directory / name, group, dtype, progress)
        weight_map.update({tensor.name: name for tensor in group})
    size = sum(tensor.count for tensor in tensors) * ITEM_SIZE[_CODES[dtype]]
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (directory / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class StoredTensor:
    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors a file declares, after checking that all their bytes are there."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 0 < length <= min(_HEADER_LIMIT, size - 8):
            raise SafetensorsError(f"{size:,} bytes cannot hold the announced header of {length:,} bytes")
        text = file.read(length)
    try:
        header = json.loads(text)
        entries = {name: _entry(name, value) for name, value in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SafetensorsError(f"the header is not valid: {error}") from error
    end = max((offset for _, offset in entries.values()), default=0)
    if 8 + length + end != size:
        raise SafetensorsError(f"it holds {size:,} bytes where its header asks for {8 + length + end:,}")
    return {name: tensor for name, (tensor, _) in entries.items()}


def _entry(name: str, value: dict[str, Any]) -> tuple[StoredTensor, int]:
    tensor = StoredTensor(str(value["dtype"]), tuple(int(n) for n in value["shape"]))
    start, end = (int(n) for n in value["data_offsets"])
    width = ITEM_SIZE.get(tensor.dtype)
    if width is not None and end - start != width * math.prod(tensor.shape):
        raise SafetensorsError(f"{name} of shape {list(tensor.shape)} cannot fill {end - start:,} bytes")
    return tensor, end
