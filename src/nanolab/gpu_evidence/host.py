"""What this host offers the run: GPUs, flash-attn, the environment that programs get."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Host", "look"]


@dataclass(frozen=True)
class Host:
    gpus: tuple[str, ...]  # values for CUDA_VISIBLE_DEVICES; empty: the run is on CPU
    flash_attn: bool

    def environment(self, root: Path, model: Path, gpus: str = "0") -> dict[str, str]:
        """For a program that uses these of the visible GPUs, "0" or "0,1"; a CPU run hides them all.

        NANO_DIR is taken out: the bundled engine is what the blocks describe, and an edit of it makes them stale.
        """
        environment = {name: value for name, value in os.environ.items() if name not in ("NANO_DIR", "NANO_LAB_TRACE")}
        path = [str(root / "src"), environment.get("PYTHONPATH", "")]
        chosen = ",".join(self.gpus[int(index)] for index in gpus.split(",") if int(index) < len(self.gpus))
        return environment | {
            "PYTHONPATH": os.pathsep.join(filter(None, path)), "MODEL_DIR": str(model.resolve()),
            "CUDA_VISIBLE_DEVICES": chosen, "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip


def look(device: str, environment: Mapping[str, str] = os.environ) -> Host:
    """The GPUs that this process may use, asked of the driver, so that torch need not be imported here."""
    installed = importlib.util.find_spec("flash_attn") is not None
    return Host(visible_gpus(environment) if device == "cuda" else (), installed and device == "cuda")


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(part.strip() for part in chosen.split(",") if part.strip() not in ("", "-1"))
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip().isdigit())
