"""A collection on disk: PREFIX.json (a result block) and PREFIX.npz (float32 rows), tied by a hash.

PREFIX.npz holds `logits` [rows, vocab] and, when asked for, `kv` [rows, layers, 2, kv_heads, head_dim]; row i is
entry i of the block's `result.trajectory`.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nanolab import evidence
from nanolab.errors import LabError

from .forced import Float32, ForcedRun


@dataclass(frozen=True)
class Paths:
    """The two files of one PREFIX; PREFIX.json may be given instead."""

    json: Path
    npz: Path

    @classmethod
    def of(cls, prefix: Path) -> Paths:
        stem = str(prefix).removesuffix(".json").removesuffix(".npz")
        return cls(Path(stem + ".json"), Path(stem + ".npz"))


@dataclass(frozen=True)
class Collection:
    """One side of a comparison. `intact` is False when the rows are not the ones that the block was written with."""

    name: str
    block: dict[str, Any]
    logits: Float32
    kv: Float32 | None
    intact: bool

    @property
    def result(self) -> dict[str, Any]:
        facts: dict[str, Any] = self.block["result"]
        return facts

    @property
    def trajectory(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.result["trajectory"]
        return rows


def write_collection(path: Path, run: ForcedRun) -> str:
    """Write the rows to `path` in one move and return the file's sha256."""
    arrays: dict[str, npt.NDArray[np.float32]] = {"logits": np.stack(run.logits)}
    if run.kv:
        arrays["kv"] = np.stack(run.kv)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    data = buffer.getvalue()
    evidence.write_atomic(path, data)
    return hashlib.sha256(data).hexdigest()


def read_collection(prefix: Path) -> Collection:
    """Both files of PREFIX; LabError says which is missing or is no collection."""
    paths = Paths.of(prefix)
    for path in (paths.json, paths.npz):
        if not path.is_file():
            raise LabError(f"{path} does not exist; collect it first: logits_check.py collect --out {prefix}")
    block = evidence.load(paths.json)
    if "trajectory" not in block["result"]:
        raise LabError(
            f"{paths.json} is no collection: its result holds no trajectory (a run with --expect-uncovered?)"
        )
    data = paths.npz.read_bytes()
    try:
        with np.load(io.BytesIO(data)) as arrays:
            logits, kv = arrays["logits"], arrays.get("kv")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise LabError(f"{paths.npz} holds no logit rows ({error}); collect it again") from error
    intact = hashlib.sha256(data).hexdigest() == block["result"].get("npz_sha256")
    return Collection(paths.json.stem, dict(block), logits, kv, intact)
