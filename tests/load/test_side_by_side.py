"""The order of the runs, what a missing vLLM or a taken port says, and a server process's end."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nanolab.errors import LabError, MissingPrerequisite
from nanolab.evidence import repo_root
from nanolab.load.sidebyside import (
    find_vllm,
    free_port,
    run_order,
    running,
    stored_dtype,
    summarize,
    vllm_command,
    vllm_environment,
)
from nanolab.models import make_tiny

SERVER = """
import http.server, os, sys
child = os.fork() if sys.argv[2] == "child" else -1
if child == 0:
    import time
    open(sys.argv[3], "w").write(str(os.getpid()))
    time.sleep(600)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_the_first_of_a_pair_changes() -> None:
    assert run_order(3) == [("lab", 1), ("vllm", 1), ("vllm", 2), ("lab", 2), ("lab", 3), ("vllm", 3)]
    assert run_order(0) == []


def test_without_vllm_the_program_is_pending(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(MissingPrerequisite, match=r"not installed in .*vllm_env\.sh"):
        find_vllm(tmp_path)
    sys.path.insert(0, str(repo_root() / "scripts" / "practice"))
    try:
        from side_by_side import main  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    arguments = ["--model", str(tiny_model), "--trace", str(repo_root() / "workloads/mixed.jsonl")]
    result = CliRunner().invoke(main, [*arguments, "--vllm-env", str(tmp_path), "--out", str(tmp_path / "out.json")])
    assert result.exit_code == 4
    assert result.output.splitlines()[-1] == "PENDING"


def test_both_servers_get_the_same_limits_and_precision(tmp_path: Path, tiny_model: Path) -> None:
    exact = make_tiny(tmp_path / "exact", dtype="float32")
    command = vllm_command(Path("bin/vllm"), exact, 8000, max_model_len=1024, seqs=4, tokens=256)
    pairs = dict(itertools.pairwise(command))
    assert [pairs[name] for name in ("--max-model-len", "--max-num-seqs", "--max-num-batched-tokens")] == [
        "1024", "4", "256",
    ]  # fmt: skip
    assert (pairs["--dtype"], stored_dtype(tiny_model)) == ("float32", "bfloat16")


def test_vllm_stays_offline_and_keeps_what_the_caller_chose() -> None:
    env = vllm_environment({"PATH": "/bin", "VLLM_CPU_KVCACHE_SPACE": "4"}, Path("/venv/bin/vllm"))
    assert env["PATH"] == "/venv/bin:/bin"
    assert (env["HF_HUB_OFFLINE"], env["VLLM_NO_USAGE_STATS"], env["VLLM_CPU_KVCACHE_SPACE"]) == ("1", "1", "4")


def test_a_server_and_its_children_end(tmp_path: Path) -> None:
    port, note = free_port(), tmp_path / "child"
    command = [sys.executable, "-c", SERVER, str(port), "child", str(note)]
    with running(command, f"http://127.0.0.1:{port}", tmp_path / "log.txt", os.environ, 60):
        child = int(note.read_text())
        os.kill(child, 0)
    with pytest.raises(ProcessLookupError):
        _gone(child)


def _gone(pid: int) -> None:
    """A killed orphan may wait a moment for its new parent to collect it."""
    for _ in range(200):
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            raise ProcessLookupError
        os.sched_yield()


def test_a_server_that_does_not_start_is_named(tmp_path: Path) -> None:
    url, log = f"http://127.0.0.1:{free_port()}", tmp_path / "log.txt"
    with pytest.raises(LabError, match=r"exit code 3 before it was ready; read .*log\.txt"):  # noqa: SIM117
        with running([sys.executable, "-c", "raise SystemExit(3)"], url, log, os.environ, 60):
            raise AssertionError("it was taken as ready")


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-c", SERVER, str(port), "alone", ""]
    url = f"http://127.0.0.1:{port}"
    with (
        running(command, url, tmp_path / "one.txt", os.environ, 60),
        pytest.raises(LabError, match="something already answers"),
        running(command, url, tmp_path / "two.txt", os.environ, 60),
    ):
        raise AssertionError("a second server was started")


def measurement(log: str, ttft: float, averaged: bool = True) -> dict[str, Any]:
    short = {"ttft_ms": {"p50": ttft}, "itl_ms": {"p50": 1.04}, "tpot_ms": {"n": 0}}
    return {
        "log": log,
        "averaged": averaged,
        "lateness_ms": {"max_ms": 0.5},
        "throughput": {"tokens_per_s": 100.0},
        "observers": {"client": {"all": {}, "short": short}},
    }


def test_a_summary_has_a_row_a_run_and_leaves_what_is_not_averaged_out_of_the_medians() -> None:
    order = run_order(2)
    logs = {"c-lab-1": 10.0, "c-lab-2": 30.0, "c-vllm-1": 20.0, "c-vllm-2": 99.0}
    measurements = [measurement(f"{log}.jsonl", ttft, averaged=log != "c-vllm-2") for log, ttft in logs.items()]
    found = summarize({"measurements": measurements}, order)
    assert [(row["run"], row["server"], row["short_ttft_ms"]) for row in found["runs"]] == [
        (1, "lab", 10.0), (2, "vllm", 20.0), (3, "vllm", 99.0), (4, "lab", 30.0),
    ]  # fmt: skip
    assert [row["averaged"] for row in found["runs"]] == [True, True, False, True]
    assert (found["medians"]["lab"]["runs"], found["medians"]["lab"]["short_ttft_ms"]) == (2, 20.0)
    assert (found["medians"]["vllm"]["runs"], found["medians"]["vllm"]["short_ttft_ms"]) == (1, 20.0)
    assert found["medians"]["lab"]["short_tpot_ms"] is None
