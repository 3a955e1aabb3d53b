"""A rank that dies between two steps: rank 0 says which, in bounded time, and nothing of the engine is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "lost_rank_main.py"


def lose_a_rank(model: Path, scene: str, options: dict[str, Any]) -> dict[str, Any]:
    """What the program saw; a program that hangs is killed with its ranks."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(model), scene, json.dumps(options)],
        env={**os.environ, "NANO_DIR": "", "OMP_NUM_THREADS": "1"}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    seen: dict[str, Any] = json.loads(out.splitlines()[-1])
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "error"), [("step", "RankError"), ("worker", "ChildProcessError")])
def test_a_rank_lost_while_idle_is_named_and_leaves_nothing(
    tiny_model: Path, two_rank_options: dict[str, Any], scene: str, error: str
) -> None:
    seen = lose_a_rank(tiny_model, scene, two_rank_options)
    assert len(seen["tokens"]) == 3  # both ranks had worked until then
    assert seen["error"] == f"{error}: rank 1 ended with exit code -9 between two steps; start the engine again"
    assert seen["notice_s"] < 5 and seen["exit_s"] < 5
    assert seen["children"] == 0
    assert not (Path("/dev/shm") / two_rank_options["shm_name"]).exists()
