"""What the doctor asks the machine. Every question is one method, so that tests can answer instead.

Anything that imports torch, flash-attn or an engine runs in a child process: a library that crashes the
interpreter or hangs costs one check, not the report.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["Host", "ProbeFailed"]

_TIMEOUT_S = 180  # a first import of torch from a cold disk can take a minute
_SHARED_MEMORY = Path("/dev/shm")
_SHARED_MEMORY_NAMES = ("nanoengine*", "nanovllm*")  # this engine's segments and upstream's

_TORCH = """
import json, torch
facts = {"build": torch.version.cuda, "available": torch.cuda.is_available()}
if facts["available"]:
    free, total = torch.cuda.mem_get_info()
    facts.update(name=torch.cuda.get_device_name(), free=free, total=total, count=torch.cuda.device_count())
print(json.dumps(facts))
"""
_COMPUTE = """
import json, torch
x = torch.arange(64, dtype=torch.float32, device="cuda").reshape(8, 8)
print(json.dumps(float((x @ x.T).sum().cpu() - (x.cpu() @ x.cpu().T).sum())))
"""
_IMPORT = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sys.argv[1:]))
"""
_ENGINE = """
import json, sys
from pathlib import Path
from nanolab import sources
source = sources.resolve(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
module = source.module("engine.llm_engine")
print(json.dumps({"kind": source.kind, "root": str(source.root), "file": module.__file__}))
"""
_MODEL = """
import json, sys
from pathlib import Path
from nanolab import models
directory = Path(sys.argv[1])
models.check_model_dir(directory)
print(json.dumps(models.describe_model(directory)))
"""


class ProbeFailed(Exception):
    """A question that the machine could not answer; the message is the last line it said."""


class Host:
    """This machine. Paths it returns are real ones: the doctor's stdout is for the person sitting here."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def python_version(self) -> str:
        return platform.python_version()

    def version(self, distribution: str) -> str | None:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return None

    def gpus(self) -> list[dict[str, str]]:
        """[{name, driver}] as nvidia-smi sees them, whatever CUDA_VISIBLE_DEVICES says; empty without a driver."""
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        try:
            done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            return []
        rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
        return [{"name": row[0], "driver": row[1]} for row in rows if len(row) == 2]

    def visible_devices(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def torch_facts(self) -> dict[str, Any]:
        """{build, available} and, with a device, {name, free, total, count}."""
        facts: dict[str, Any] = self._ask(_TORCH)
        return facts

    def cuda_error(self) -> float:
        """Difference of one 8x8 product on the GPU from the same on the CPU; 0.0 when CUDA computes."""
        return float(self._ask(_COMPUTE))

    def import_modules(self, names: Sequence[str]) -> None:
        """Import them in a fresh interpreter; ProbeFailed says what broke."""
        self._ask(_IMPORT, *names)

    def engine_facts(self, source: Path | None) -> dict[str, str]:
        """{kind, root, file} of the engine that scripts would drive."""
        facts: dict[str, str] = self._ask(_ENGINE, *([str(source.resolve())] if source else []))
        return facts

    def model_facts(self, directory: Path) -> dict[str, Any]:
        """{name, config_sha256, weights_sha256, synthetic} of a complete model directory."""
        facts: dict[str, Any] = self._ask(_MODEL, str(directory.resolve()))
        return facts

    def port_is_free(self, port: int) -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT does not stop an engine
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
        return True

    def shared_memory(self) -> list[str]:
        """Shared-memory segments of engines, running or left behind."""
        return sorted(path.name for pattern in _SHARED_MEMORY_NAMES for path in _SHARED_MEMORY.glob(pattern))

    def sha256(self, file: Path) -> str:
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def free_disk_bytes(self, directory: Path) -> int:
        while not directory.exists():
            directory = directory.parent
        return shutil.disk_usage(directory).free

    def _ask(self, program: str, *arguments: str) -> Any:
        """Run `program` in a fresh interpreter; its last line of output is the answer, as JSON."""
        paths = [str(self.root / "src"), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [sys.executable, "-c", program, *arguments]
        try:
            done = subprocess.run(
                command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise ProbeFailed(f"no answer within {_TIMEOUT_S} s") from None
        if done.returncode != 0:
            raise ProbeFailed(_last_line(done.stderr) or f"the interpreter ended with code {done.returncode}")
        return json.loads(done.stdout.splitlines()[-1])


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
