"""Every test in this folder runs kernels, on CPU through Triton's interpreter; tests/conftest.py switches it on."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
