"""The kernels compile to machine code for real GPUs, without spilling registers and within shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# shared memory a block may use: GeForce Ampere, the tightest of its generation, and Hopper
SHARED_LIMIT = {86: 99 * 1024, 90: 227 * 1024}


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_LIMIT)
def test_every_kernel_compiles(capability: int, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    script = Path(__file__).with_name("offline_compile.py")
    run = subprocess.run(
        [sys.executable, str(script), str(capability)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert not [line for line in lines if "error" in line]
    assert {line["kernel"] for line in lines} >= {
        "_split_attention_kernel",
        "_prefill_attention_kernel",
        "_gemv_kernel",
    }
    assert not [line for line in lines if line["spill_bytes"]]
    assert max(line["shared_bytes"] for line in lines) <= SHARED_LIMIT[capability]
