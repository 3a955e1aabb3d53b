"""Recording: verdict, exit code and block agree; --out is safe; evidence types are honest."""

from __future__ import annotations

import bdb
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from nanolab.errors import LabError, MissingPrerequisite
from nanolab.evidence import Recording, load, repo_root
from nanolab.verdicts import EvidenceType, Verdict

ENGINE = {"kind": "working-copy", "tree_sha256": "0" * 64}
CUDA = {"kind": "cuda", "name": "A GPU", "count": 1, "driver": "1.0", "cuda": "12.9"}
SOURCE = "src/nanolab/verdicts.py"


def recording(out: Path | None, **changes: object) -> Recording:
    options = {"title_en": "A test", "title_zh": "测试", "sources": [SOURCE], "command": ["python", "x.py"]}
    return Recording("a-test", out=out, **{**options, **changes})


def run(out: Path | None, body: object) -> Result:
    """Invoke a click program whose work is `body(rec)`."""

    @click.command()
    def program() -> None:
        with recording(out) as rec:
            body(rec)  # type: ignore[operator]

    return CliRunner().invoke(program, [])


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("PASS", 0), ("COLLECTED", 0), ("FAIL", 1), ("REVIEW", 3), ("PENDING", 4)],
)
def test_verdict_line_exit_code_and_block_agree(tmp_path: Path, verdict: str, code: int) -> None:
    out = tmp_path / "block.json"
    result = run(out, lambda rec: rec.finish(Verdict(verdict), EvidenceType.STATIC))
    assert result.exit_code == code
    assert result.stdout.splitlines()[-1] == verdict
    assert load(out)["check"] == verdict


def test_every_verdict_is_covered_above() -> None:
    assert [v.value for v in Verdict] == ["PASS", "COLLECTED", "FAIL", "REVIEW", "PENDING"]


def test_bad_input_exits_2_and_writes_nothing(tmp_path: Path) -> None:
    def body(rec: Recording) -> None:
        raise LabError("prompt is empty: 0 tokens, at least 1 needed")

    result = run(tmp_path / "block.json", body)
    assert result.exit_code == 2
    assert "at least 1 needed" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_missing_prerequisite_is_pending(tmp_path: Path) -> None:
    def body(rec: Recording) -> None:
        raise MissingPrerequisite("no GPU here")

    result = run(tmp_path / "block.json", body)
    assert result.exit_code == 4
    assert result.stdout.splitlines()[-1] == "PENDING"
    assert "no GPU here" in result.stderr


def test_an_exception_prints_fail_and_keeps_the_previous_block(tmp_path: Path) -> None:
    out = tmp_path / "block.json"
    out.write_text("previous")

    def body(rec: Recording) -> None:
        rec.finish(Verdict.PASS, EvidenceType.STATIC)
        raise RuntimeError("the engine broke")

    result = run(out, body)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "FAIL"
    assert "the engine broke" in result.stderr
    assert out.read_text() == "previous"
    assert os.listdir(tmp_path) == ["block.json"]


def test_an_interrupt_is_neither_swallowed_nor_recorded(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), recording(tmp_path / "block.json"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_leaving_the_debugger_is_neither_pass_nor_fail(tmp_path: Path) -> None:
    def body(rec: Recording) -> None:
        raise bdb.BdbQuit

    result = run(tmp_path / "block.json", body)
    assert (result.exit_code, result.stdout) == (4, "PENDING\n")
    assert list(tmp_path.iterdir()) == []


def test_forgetting_to_finish_fails(tmp_path: Path) -> None:
    result = run(tmp_path / "block.json", lambda rec: None)
    assert result.exit_code == 1
    assert "without rec.finish" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_out_the_verdict_is_still_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with recording(None) as rec:
        rec.finish(Verdict.PASS, EvidenceType.STATIC)
    assert capsys.readouterr().out == "PASS\n"
    assert rec.block is not None
    assert rec.block["sources_sha256"].keys() >= {SOURCE}


@pytest.mark.parametrize(
    ("evidence", "engine", "device", "complaint"),
    [
        (EvidenceType.GPU, ENGINE, None, "needs device.kind 'cuda'"),
        (EvidenceType.CPU_ENGINE, None, None, "needs rec.engine"),
        (EvidenceType.CPU_SCHEDULER, None, None, "needs rec.engine"),
        (EvidenceType.CPU_ENGINE, {"kind": "simulated"}, None, "simulated engine"),
    ],
)
def test_a_block_never_claims_more_than_what_ran(
    evidence: EvidenceType, engine: dict[str, object] | None, device: dict[str, object] | None, complaint: str
) -> None:
    rec = recording(None)
    rec.engine, rec.device = engine, device
    with pytest.raises(ValueError, match=complaint):
        rec.finish(Verdict.PASS, evidence)


def test_a_claim_that_became_too_high_after_finish_is_refused(tmp_path: Path) -> None:
    def body(rec: Recording) -> None:
        rec.device = CUDA
        rec.finish(Verdict.PASS, EvidenceType.GPU)
        rec.device = None

    assert run(tmp_path / "block.json", body).exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_run_may_claim_gpu(tmp_path: Path) -> None:
    def body(rec: Recording) -> None:
        rec.device = CUDA
        rec.finish(Verdict.PASS, EvidenceType.GPU)

    assert run(tmp_path / "block.json", body).exit_code == 0
    assert load(tmp_path / "block.json")["evidence"] == "gpu"


def test_numpy_tuples_and_non_finite_numbers_become_json(tmp_path: Path) -> None:
    def body(rec: Recording) -> None:
        rec.result = {"a": np.float32(1.5), "b": np.arange(3), "c": (1, (2, 3)), 7: float("nan"), "p": Path("x")}
        rec.finish(Verdict.COLLECTED, EvidenceType.STATIC)

    assert run(tmp_path / "b.json", body).exit_code == 0
    expected = {"a": 1.5, "b": [0, 1, 2], "c": [1, [2, 3]], "7": "nan", "p": "x"}
    assert load(tmp_path / "b.json")["result"] == expected


def test_a_value_that_json_cannot_hold_is_named(tmp_path: Path) -> None:
    def body(rec: Recording) -> None:
        rec.result = {"engine": object()}
        rec.finish(Verdict.PASS, EvidenceType.STATIC)

    result = run(tmp_path / "b.json", body)
    assert result.exit_code == 1
    assert "cannot hold object" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_paths_and_names_are_scrubbed_from_what_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_DIR", "/data/weights/tiny")
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-box-7.example.org")
    out = tmp_path / "b.json"
    command = ["/usr/bin/python3.11", "x.py", "--model", "/data/weights/tiny", "--log=/home/alice/a.log"]
    with recording(out, command=command) as rec:
        rec.notes.append(f"read {repo_root()}/src/a.py as alice on gpu-box-7; served /v1/completions, 3/0/3")
        rec.finish(Verdict.PASS, EvidenceType.STATIC)
    block = load(out)
    assert block["command"] == ["python3.11", "x.py", "--model", "$MODEL_DIR", "--log=$ELSEWHERE/a.log"]
    assert block["notes"] == ["read src/a.py as $USER on $HOST; served /v1/completions, 3/0/3"]


def test_out_that_is_a_directory_is_refused_before_work(tmp_path: Path) -> None:
    worked: list[int] = []
    result = run(tmp_path, lambda rec: worked.append(1))
    assert result.exit_code == 2
    assert "is a directory" in result.stderr
    assert worked == []


@pytest.mark.parametrize("below", ["file", "proc"])
def test_out_that_cannot_be_written_is_refused_before_work(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    out = {"file": tmp_path / "file" / "b.json", "proc": Path("/proc/nanolab/b.json")}[below]
    worked: list[int] = []
    result = run(out, lambda rec: worked.append(1))
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert "Nothing was run" in result.stderr
    assert worked == []


def test_out_in_a_read_only_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:  # permission bits do not bind root, who often runs CI
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", denied)
    with pytest.raises(LabError, match="Permission denied"), recording(tmp_path / "b.json"):
        pytest.fail("the work began")


def test_out_that_is_a_device_is_refused() -> None:
    with pytest.raises(LabError, match="not a regular file"), recording(Path("/dev/null")):
        pytest.fail("the work began")
    assert Path("/dev/null").is_char_device()


def test_a_name_that_is_no_id_is_refused_before_work(tmp_path: Path) -> None:
    options = {"title_en": "x", "title_zh": "x", "sources": [SOURCE]}
    with pytest.raises(LabError, match="'my run'"), Recording("my run", out=tmp_path / "my run.json", **options):
        pytest.fail("the work began")


def test_missing_parents_are_made_and_the_file_is_readable(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "new" / "b.json"
    assert run(out, lambda rec: rec.finish(Verdict.PASS, EvidenceType.STATIC)).exit_code == 0
    assert out.stat().st_mode & 0o444 == 0o444 & ~_umask()


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_a_failed_move_keeps_the_previous_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "b.json"
    out.write_text("previous")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    result = run(out, lambda rec: rec.finish(Verdict.PASS, EvidenceType.STATIC))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "FAIL"
    assert out.read_text() == "previous"
    assert os.listdir(tmp_path) == ["b.json"]


KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
from nanolab.evidence import Recording
from nanolab.verdicts import EvidenceType, Verdict
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)  # the bytes are out, the move is not
with Recording("k", title_en="k", title_zh="k", out=Path(sys.argv[1]), sources=["pyproject.toml"]) as rec:
    rec.finish(Verdict.PASS, EvidenceType.STATIC)
"""


def test_a_killed_writer_leaves_the_previous_block_whole(tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    out.write_text('{"previous": true}')
    environment = {**os.environ, "PYTHONPATH": str(repo_root() / "src")}
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WRITER, str(out)], env=environment, capture_output=True, timeout=60
    )
    assert done.returncode == -9, done.stderr
    assert json.loads(out.read_text()) == {"previous": True}
    assert list(tmp_path.glob("*.json")) == [out]  # a left-over part is hidden and is no .json


def test_a_real_process_exits_with_its_verdict(tmp_path: Path) -> None:
    program = KILLED_WRITER.replace("os.fsync = ", "ignored = ").replace("Verdict.PASS", "Verdict.REVIEW")
    out = tmp_path / "b.json"
    environment = {**os.environ, "PYTHONPATH": str(repo_root() / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(out)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.splitlines()[-1], load(out)["check"]) == (3, "REVIEW", "REVIEW")
    assert Path(load(out)["command"][0]).name == Path(sys.executable).name
