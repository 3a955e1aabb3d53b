"""The learner's archive: everything that proves something, nothing that is large or somebody else's."""

from __future__ import annotations

import importlib.util
import os
import socket
import tarfile
from pathlib import Path

import pytest
from bundle_lab import write
from click.testing import CliRunner

from nanolab.bundle import learning
from nanolab.errors import LabError
from nanolab.evidence import repo_root


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    root = tmp_path / "lab"
    write(root, {part: "text\n" for part in learning.PARTS if "." in part})
    inside = (
        "scripts/e2e/x.py",
        "patches/01.patch",
        "workloads/mixed.jsonl",
        "runs/quick-A.json",
        "notes/attention.md",
    )
    write(root, dict.fromkeys(inside, "text\n"))
    return root


def names(target: Path) -> set[str]:
    with tarfile.open(target) as archive:
        return set(archive.getnames())


def test_holds_what_the_manual_names(lab: Path, tmp_path: Path) -> None:
    packed = learning.pack(lab, tmp_path / "a.tar.gz")
    assert names(tmp_path / "a.tar.gz") == set(packed.files)
    assert {name.partition("/")[0] for name in packed.files} == set(learning.PARTS)
    assert packed.left_out == []


def test_models_environments_and_engine_copies_stay_out(lab: Path, tmp_path: Path) -> None:
    unwanted = (
        *("engine/nanoengine/x.py", "models/tiny/config.json", ".venv-nano/pyvenv.cfg", "src/nanoengine/x.py"),
        *("runs/faulty-engine/nanoengine/x.py", "runs/clone/.git/HEAD", "runs/venv/pyvenv.cfg"),
        *("runs/model/model.safetensors", "runs/engine-hf.npz", "scripts/__pycache__/x.pyc"),
    )
    write(lab, dict.fromkeys(unwanted, "x"))
    (lab / "runs" / "elsewhere").symlink_to(tmp_path)
    packed = learning.pack(lab, tmp_path / "a.tar.gz")
    assert not names(tmp_path / "a.tar.gz") & set(unwanted)
    assert sorted(packed.left_out) == [
        "runs/clone/: a copy of an engine",
        "runs/elsewhere: a link",
        "runs/engine-hf.npz: numbers of a model",
        "runs/faulty-engine/: a copy of an engine",
        "runs/model/: a model",
        "runs/venv/: an environment",
    ]


def test_large_files_are_named(lab: Path, tmp_path: Path) -> None:
    with (lab / "runs" / "profile.json").open("wb") as handle:
        handle.truncate(learning.LARGEST + 1)
    assert learning.pack(lab, tmp_path / "a.tar.gz").left_out == ["runs/profile.json: larger than 16 MiB"]


def test_what_is_no_regular_file_is_named_and_not_opened(lab: Path, tmp_path: Path) -> None:
    place = lab / "runs" / "control.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(place))  # a socket's path may have about 100 bytes
        packed = learning.pack(lab, tmp_path / "evidence.tar.gz")
    assert "runs/control.sock: no regular file" in packed.left_out and "runs/control.sock" not in packed.files


def test_the_owner_is_not_in_it(lab: Path, tmp_path: Path) -> None:
    learning.pack(lab, tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        for entry in archive:
            assert (entry.uid, entry.gid, entry.uname, entry.gname) == (0, 0, "", "")
            assert entry.mtime == int((lab / entry.name).stat().st_mtime)


def test_a_missing_part_is_named_and_nothing_is_written(lab: Path, tmp_path: Path) -> None:
    (lab / "notes" / "attention.md").unlink()
    (lab / "notes").rmdir()
    with pytest.raises(LabError, match=r"notes not found.*--init-notes"):
        learning.pack(lab, tmp_path / "a.tar.gz")
    assert not (tmp_path / "a.tar.gz").exists()


def test_the_program_counts_and_concludes(lab: Path) -> None:
    path = repo_root() / "scripts" / "e2e" / "evidence_archive.py"
    spec = importlib.util.spec_from_file_location("evidence_archive", path)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    done = CliRunner().invoke(program.main, ["--root", str(lab)])
    assert done.exit_code == 0
    assert "1 in runs/, 1 in notes/" in done.output
    assert done.output.splitlines()[-1] == "COLLECTED"
    assert (lab / learning.NAME).is_file()
