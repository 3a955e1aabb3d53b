"""The two NumPy labs print exactly the lines the manual promises, and notice when causality is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LAB, WALKTHROUGH = "scripts/labs/01_attention_numpy.py", "scripts/pedagogy/00_uncached_walkthrough.py"


def run(root: Path, script: Path | str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(script)], cwd=root, env=environment, capture_output=True, text=True, timeout=60
    )


def test_lab_01(root: Path) -> None:
    done = run(root, LAB)
    assert done.stdout.splitlines() == [
        "weights rows:",
        "[1. 0. 0.]",
        "[0.3302 0.6698 0.    ]",
        "[0.2483 0.2483 0.5035]",
        "last output: [0.7517 0.7517]",
        "future change leaves earlier positions unchanged: True",
        "cached last output: [0.6304 0.8374]",
        "max error: 0.0",
        "query positions: full=4, cached=1; KV positions=4",
        "CHECK: PASS",
    ]
    assert done.returncode == 0


def test_lab_01_without_the_mask_fails_at_the_weights(root: Path, tmp_path: Path) -> None:
    """The exercise of B.1.2: without the mask the first row is no longer [1, 0, 0]."""
    source = (root / LAB).read_text(encoding="utf-8")
    assert source.count("CAUSAL = True") == 1
    unmasked = tmp_path / "unmasked.py"
    unmasked.write_text(source.replace("CAUSAL = True", "CAUSAL = False"), encoding="utf-8")
    done = run(root, unmasked)

    assert done.returncode == 1
    assert "assert np.allclose(full.weights" in done.stderr
    assert "CHECK: PASS" not in done.stdout


def test_walkthrough(root: Path) -> None:
    done = run(root, WALKTHROUGH)
    lines = done.stdout.splitlines()

    assert done.returncode == 0, done.stderr
    assert [line for line in lines if line.startswith("round")] == [
        "round 1: input ids [0, 3, 5] (length 3)",
        "round 2: input ids [0, 3, 5, 4] (length 4)",
        "round 3: input ids [0, 3, 5, 4, 1] (length 5)",
    ]
    assert [line for line in lines if "score shapes" in line] == [
        f"  score shapes, block by block: [[{n}, {n}], [{n}, {n}]]" for n in (3, 4, 5)
    ]
    assert sum("hidden[" in line for line in lines) == 12
    assert lines[-2:] == ["total input positions = 12", "CHECK: PASS"]
    assert float(lines[-3].removeprefix("causal prefix error = ")) < 1e-12
