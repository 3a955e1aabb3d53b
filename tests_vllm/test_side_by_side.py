"""Both servers, the same model: equal tokens in float32, one run each, one report of cpu-engine evidence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from nanolab import evidence
from nanolab.evidence import repo_root
from nanolab.load.trace import read_trace, write_trace
from nanolab.models import make_tiny

SCRIPT = repo_root() / "scripts" / "practice" / "side_by_side.py"


def test_exact_tokens_then_a_report(vllm_venv: Path, tiny_model: Path, tmp_path: Path) -> None:
    exact = make_tiny(tmp_path / "tiny-float32", dtype="float32")
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, read_trace(repo_root() / "workloads" / "mixed.jsonl").requests[:4])
    out = tmp_path / "comparison.json"
    command = [
        *(sys.executable, str(SCRIPT), "--model", str(tiny_model), "--exact-model", str(exact)),
        *("--trace", str(trace), "--vllm-env", str(vllm_venv), "--repeats", "1", "--start-s", "600"),
        *("--out", str(out)),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode in (0, 3), done.stdout + done.stderr  # 3: this host was busy, so the sender was late
    same = evidence.load(tmp_path / "comparison-exact.json")
    assert (same["check"], same["result"]["equal"], same["result"]["logprobs"]["top1_equal"]) == ("PASS", 4, 15)
    rounded = evidence.load(tmp_path / "comparison-outputs.json")
    assert rounded["check"] in ("PASS", "REVIEW")
    assert rounded["result"]["different"] == 0
    summary = evidence.load(out)
    assert summary["evidence"] == "cpu-engine"
    assert [run["server"] for run in summary["result"]["runs"]] == ["lab", "vllm"]
    report = evidence.load(tmp_path / "comparison-report.json")
    assert report["evidence"] == "cpu-engine"
    assert [run["log"] for run in report["result"]["measurements"]] == [
        "comparison-lab-1.jsonl",
        "comparison-vllm-1.jsonl",
    ]
    for run in report["result"]["measurements"]:
        assert run["observers"]["client"]["all"]["ends"] == {"length": 4}
        assert run["observers"]["client"]["all"]["chunks_without_token_count"] == 0
