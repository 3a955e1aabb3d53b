"""Provenance: hashes decide staleness, git speaks of the sources only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nanolab.evidence
import nanolab.verdicts
from nanolab.errors import LabError
from nanolab.evidence import describe_device, describe_git, describe_versions, is_stale, repo_root, stale_files
from nanolab.evidence.provenance import matches_commit, source_hashes

from .conftest import Repository

Make = Callable[..., dict[str, Any]]


def test_modules_packages_and_paths_name_files() -> None:
    hashes = source_hashes([nanolab.verdicts, nanolab.evidence, Path("pyproject.toml")])
    assert "src/nanolab/verdicts.py" in hashes
    assert "src/nanolab/evidence/block.schema.json" in hashes
    assert "src/nanolab/evidence/recording.py" in hashes
    content = (repo_root() / "pyproject.toml").read_bytes()
    assert hashes["pyproject.toml"] == hashlib.sha256(content).hexdigest()
    assert not any("__pycache__" in name for name in hashes)


def test_what_setup_makes_and_what_lies_outside_is_left_out(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("")
    engine = repository.root / "engine" / "nanoengine"
    engine.mkdir(parents=True)
    (engine / "a.py").write_text("")
    sources = ["src", engine, tmp_path / "outside.py"]
    assert list(source_hashes(sources, repository.root)) == ["src/cases.py"]


def test_a_source_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(LabError, match=r"src/nothing\.py"):
        source_hashes(["src/nothing.py"])


def test_a_block_is_stale_when_a_source_differs_or_is_gone(repository: Repository, make_block: Make) -> None:
    block = make_block(sources_sha256=repository.hashes())
    assert not is_stale(block, repository.root)
    repository.source.write_text("CASES = 2\n")
    assert stale_files(block, repository.root) == ["src/cases.py"]
    repository.source.unlink()
    assert is_stale(block, repository.root)


def test_dirty_speaks_of_the_named_files_only(repository: Repository) -> None:
    (repository.root / "unrelated.md").write_text("draft")
    head = repository.git("rev-parse", "HEAD")
    assert describe_git(["src/cases.py"], repository.root) == {"commit": head, "dirty": False}
    repository.source.write_text("CASES = 2\n")
    assert describe_git(["src/cases.py"], repository.root) == {"commit": head, "dirty": True}


def test_a_tree_without_its_own_history_has_no_commit(repository: Repository) -> None:
    bundle = repository.root / "bundle"  # unpacked inside somebody else's repository
    bundle.mkdir()
    assert describe_git(["x"], bundle) == {"commit": None, "dirty": None}


def test_matching_a_commit_compares_bytes(repository: Repository, make_block: Make) -> None:
    block = make_block(sources_sha256=repository.hashes())
    assert matches_commit(block, repository.root)
    repository.source.write_text("CASES = 2\n")
    assert matches_commit(block, repository.root)  # the commit still has them
    assert not matches_commit(make_block(sources_sha256=repository.hashes()), repository.root)


def test_this_host_is_described_without_its_name() -> None:
    device = describe_device("cpu")
    assert device["kind"] == "cpu"
    assert device["count"] >= 1
    versions = describe_versions()
    assert list(versions) == ["python", "torch", "triton", "flash_attn", "transformers", "numpy", "nanolab"]
    assert versions["torch"] is not None
    assert versions["nanolab"] is not None


def test_unknown_device_kind_is_refused() -> None:
    with pytest.raises(LabError, match="'tpu' is unknown"):
        describe_device("tpu")
