"""A copy of what a build needs, with pages and blocks that a test may change, and small helpers for the browser."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver

from nanolab.evidence import repo_root

GALLERY = Path(__file__).parent / "gallery"


@dataclass
class Lab:
    """A copy of what a build needs, whose pages and blocks a test may change."""

    root: Path

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def block(self, block_id: str, **changes: Any) -> None:
        """Put a valid block into docs/evidence; its one source is pyproject.toml unless `changes` says otherwise."""
        self.write(f"docs/evidence/{block_id}.json", json.dumps(make_block(block_id, self.root) | changes))

    def build(self, language: str) -> subprocess.CompletedProcess[str]:
        config = "mkdocs.yml" if language == "zh" else "mkdocs.en.yml"
        return subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(self.root / config)],
            cwd=self.root.parent,  # a build may be started from anywhere
            env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


def make_block(block_id: str, root: Path) -> dict[str, Any]:
    """A block as a script records it on CPU."""
    digest = hashlib.sha256((root / "pyproject.toml").read_bytes()).hexdigest()
    return {
        "schema": "nanolab-block-1",
        "id": block_id,
        "title": {"zh": "案例 A：三步", "en": "Case A: three steps"},
        "check": "PASS",
        "evidence": "cpu-engine",
        "command": ["python", "scripts/e2e/quick_walk.py", "--case", "A", "--out", f"runs/{block_id}.json"],
        "started_at": "2026-11-30T12:00:00Z",
        "duration_s": 1.25,
        "engine": {"kind": "bundled", "package": "nanoengine", "commit": None, "tree_sha256": "a" * 64, "patches": []},
        "model": {"name": "tiny", "config_sha256": "b" * 64, "weights_sha256": "c" * 64, "synthetic": True},
        "device": {"kind": "cpu", "name": "x86_64", "count": 2, "driver": None, "cuda": None},
        "versions": {
            "python": "3.11.2",
            "torch": "2.13.0",
            "triton": None,
            "flash_attn": None,
            "transformers": "5.17.0",
            "numpy": "2.4.6",
            "nanolab": "0.1.0",
        },
        "git": {"commit": "d" * 40, "dirty": False},
        "sources_sha256": {"pyproject.toml": digest},
        "config": {"budget": 512},
        "result": {
            "steps": 3,
            "output_counts": [3],
            "max_abs": 0.000123,
            "rounds": [
                {"phase": "prefill", "batch": "3/0/3"},
                {"phase": "decode", "batch": "4/3/1"},
                {"phase": "decode", "batch": "5/4/1"},
            ],
        },
        "volatile": [],
        "notes": ["recorded by a test"],
    }


def make_lab(root: Path) -> Lab:
    """The real configuration, hook, assets and sources; the gallery's pages; no block yet."""
    repo = repo_root()
    root.mkdir(parents=True)
    for name in ("mkdocs.yml", "mkdocs.en.yml", "pyproject.toml"):
        shutil.copy2(repo / name, root / name)
    for name in ("docs/hooks", "docs/shared", "src"):
        shutil.copytree(repo / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(GALLERY, root, dirs_exist_ok=True)
    (root / "docs" / "evidence").mkdir(parents=True, exist_ok=True)
    return Lab(root)


def fill_gallery(lab: Lab) -> None:
    """The blocks the gallery's pages embed: passed, stale, failed, and one that nobody has recorded."""
    lab.block("walk-A")
    lab.block("walk-stale", sources_sha256={"pyproject.toml": "0" * 64}, check="REVIEW")
    lab.block("walk-fail", check="FAIL", evidence="static", model=None, title={"zh": "没有通过", "en": "Did not pass"})


def set_viewport(driver: webdriver.Chrome, width: int, height: int) -> None:
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
    )
