"""A valid block, and a small repository for blocks to be promoted into."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Block = dict[str, Any]
DIGEST = "0" * 64


@pytest.fixture
def make_block() -> Callable[..., Block]:
    """A factory of valid blocks: `make_block(check="FAIL", result={...})`."""
    base: Block = {
        "schema": "nanolab-block-1",
        "id": "quick-A",
        "title": {"zh": "案例 A", "en": "Case A"},
        "check": "PASS",
        "evidence": "cpu-engine",
        "command": ["python", "scripts/e2e/quick_walk.py", "--case", "A", "--out", "runs/quick-A.json"],
        "started_at": "2026-01-02T03:04:05Z",
        "duration_s": 1.5,
        "engine": {"kind": "bundled", "tree_sha256": DIGEST},
        "model": {"name": "tiny", "config_sha256": DIGEST, "weights_sha256": DIGEST, "synthetic": True},
        "device": {"kind": "cpu", "name": "Some CPU", "count": 2, "driver": None, "cuda": None},
        "versions": {
            "python": "3.11.7",
            **dict.fromkeys(("torch", "triton", "flash_attn", "transformers", "numpy", "nanolab")),
        },
        "git": {"commit": "a" * 40, "dirty": False},
        "sources_sha256": {"src/cases.py": DIGEST},
        "config": {},
        "result": {"steps": 3},
        "volatile": [],
        "notes": [],
    }

    def make(**changes: Any) -> Block:
        return {**copy.deepcopy(base), **changes}

    return make


class Repository:
    """A throw-away git repository with one source file, src/cases.py."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "src" / "cases.py"
        self.source.parent.mkdir(parents=True)
        self.source.write_text("CASES = 1\n")
        self.git("init", "-q", "-b", "main")
        self.commit()

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
        command = ["git", *identity, "-C", str(self.root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "state")

    def hashes(self) -> dict[str, str]:
        return {"src/cases.py": hashlib.sha256(self.source.read_bytes()).hexdigest()}

    def write_block(self, block: Block) -> Path:
        path = self.root / "runs" / f"{block['id']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(block))
        return path


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository((tmp_path / "repository").resolve())
