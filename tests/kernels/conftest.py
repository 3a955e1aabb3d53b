"""Every test in this folder runs kernels: on CPU through Triton's interpreter, which must be chosen before import."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import triton_interpreter

triton_interpreter.enable()
