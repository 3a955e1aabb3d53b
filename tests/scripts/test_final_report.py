"""final_report.py: templates that never overwrite, and a report that only says what blocks say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nanolab import final_report
from nanolab.errors import LabError
from nanolab.evidence import repo_root
from nanolab.final_report.plan import EXPECTED, MINIMUM
from nanolab.verdicts import EvidenceType

DIGEST = "0" * 64
NAMES = [
    "tokenizer",
    "attention",
    "kv-cache-math",
    "memory-budget",
    "lifecycle",
    "scheduler",
    "kv-pages",
    "model-execution",
    "graph-fallback",
    "prefix-cache",
    "engine-logits",
    "service-runtime",
    "scheduling-change",
    "execution-change",
    "parallel-service",
    "service-lifecycle",
]
VERSIONS = {"python": "3.11.7", **dict.fromkeys(("torch", "triton", "flash_attn", "transformers", "numpy", "nanolab"))}


def put(root: Path, name: str, evidence: str = "gpu", count: int = 1, directory: str = "runs", **changes: Any) -> None:
    cuda = evidence == "gpu"
    driver = "1" if cuda else None
    block = {
        "schema": "nanolab-block-1",
        "id": name,
        "title": {"zh": f"题 {name}", "en": f"title of {name}"},
        "check": "PASS",
        "evidence": evidence,
        "command": ["python", "x.py", "--out", f"runs/{name}.json"],
        "started_at": "2026-01-02T03:04:05Z",
        "duration_s": 1,
        "engine": {"kind": "bundled"},
        "model": {"name": "tiny", "config_sha256": DIGEST, "weights_sha256": DIGEST, "synthetic": True},
        "device": {"kind": "cuda" if cuda else "cpu", "name": "Chip", "count": count, "driver": driver, "cuda": driver},
        "versions": VERSIONS,
        "git": {"commit": None, "dirty": None},
        "sources_sha256": {"a.py": DIGEST},
        "config": {},
        "result": {"steps": 3, "rows": list(range(100))},
        "volatile": [],
        "notes": [],
        **changes,
    }
    path = root / directory / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(block), encoding="utf-8")


def put_log(root: Path, name: str, *events: dict[str, Any], simulated: bool = True, complete: bool = True) -> None:
    header = {"event": "run", "simulated": simulated, "evidence": "cpu-simulation" if simulated else "gpu"}
    end = {"event": "end", "complete": complete}
    path = root / "runs" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *events, end)))


def report(root: Path) -> str:
    return final_report.render(root, final_report.collect(root))


def waiting(root: Path) -> dict[str, str]:
    return {item.id: reason for item, reason in final_report.pending(final_report.collect(root))}


def section(text: str, heading: str) -> str:
    return re.split(r"^## ", text.split(f"## {heading}")[1], flags=re.M)[0]


def test_the_sixteen_templates_are_bilingual_and_hold_what_they_must(tmp_path: Path) -> None:
    made, kept = final_report.init_notes(tmp_path / "notes")
    assert [path.stem for path in made] == NAMES
    assert kept == []
    for path in made:
        headings = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        assert len(headings) >= 6  # title, three points, evidence, not verified
        assert all(re.search(r"[\u4e00-\u9fff=].* · .*[A-Za-z]", line) for line in headings), headings
    text = (tmp_path / "notes" / "model-execution.md").read_text(encoding="utf-8")
    assert "h = x + Attn(Norm1(x))" in text
    assert "residual" in text


def test_an_existing_note_is_never_touched(tmp_path: Path) -> None:
    mine = tmp_path / "notes" / "attention.md"
    mine.parent.mkdir()
    mine.write_text("my words")
    made, kept = final_report.init_notes(mine.parent)
    assert (len(made), kept) == (15, [mine])
    assert final_report.init_notes(mine.parent)[0] == []
    assert mine.read_text() == "my words"


def test_a_note_counts_as_written_once_it_differs_from_its_template(tmp_path: Path) -> None:
    final_report.init_notes(tmp_path / "notes")
    assert "| notes/attention.md | B.1.2 | 空模板 · template |" in report(tmp_path)
    with (tmp_path / "notes" / "attention.md").open("a") as note:
        note.write("an answer")
    assert "| notes/attention.md | B.1.2 | 已写 · written |" in report(tmp_path)


def test_without_any_evidence_everything_is_pending(tmp_path: Path) -> None:
    text = report(tmp_path)
    assert set(waiting(tmp_path)) == {item.id for item in EXPECTED}
    assert "还没有结果块" in text
    assert section(text, "最低证据").count("PENDING") == len(MINIMUM) == 5
    assert all(f"`{item.command}`" in text for item in EXPECTED)


@pytest.mark.parametrize("evidence", ["gpu", "cpu-engine", "cpu-scheduler", "cpu-simulation", "static"])
def test_every_conclusion_carries_its_evidence_type(tmp_path: Path, evidence: str) -> None:
    put(tmp_path, "some-run", evidence)
    text = section(report(tmp_path), "结论")
    words = " · ".join(final_report.EVIDENCE_WORDS[EvidenceType(evidence)])
    assert "### some-run: 题 some-run · title of some-run" in text
    assert f"`{evidence}`, {words}; 本机运行 · recorded here" in text
    assert "steps = 3" in text
    assert "rows" not in text  # long facts stay in the block
    assert "合成权重 · synthetic weights" in text
    assert "过期 · stale" in text  # a.py does not exist under this root


def test_a_cpu_block_does_not_settle_a_gpu_fact(tmp_path: Path) -> None:
    put(tmp_path, "quick-A", "cpu-engine")
    assert "needs a GPU" in waiting(tmp_path)["quick-A"]
    assert "| PENDING (GPU) | quick-A (真实引擎，CPU" in section(report(tmp_path), "最低证据")
    put(tmp_path, "quick-A-gpu")
    assert "quick-A" not in waiting(tmp_path)
    assert "| PASS | quick-A-gpu (真实 GPU 测量" in section(report(tmp_path), "最低证据")


def compared(*runs: tuple[str, int | None]) -> dict[str, Any]:
    return {"measurements": [{"evidence": kind, "config": {"tensor_parallel_size": ranks}} for kind, ranks in runs]}


@pytest.mark.parametrize(
    ("count", "runs", "settled"),
    [
        (1, [("gpu", 1), ("gpu", 1), ("gpu", 2)], True),  # each rank has a card of its own, whatever one process saw
        (1, [("gpu", 1), ("gpu", 1)], False),  # two replicas may have shared a card
        (8, [("gpu", 1), ("gpu", None)], False),  # a host with eight cards, one in use
        (1, [("gpu", 1), ("cpu-engine", 2)], False),  # two ranks on a CPU
    ],
)
def test_only_a_run_over_two_gpus_settles_a_two_gpu_fact(
    tmp_path: Path, count: int, runs: list[tuple[str, int | None]], settled: bool
) -> None:
    put(tmp_path, "parallel-comparison", count=count, result=compared(*runs))
    reason = waiting(tmp_path).get("parallel-comparison", "")
    assert reason == "" if settled else "needs two GPUs" in reason


def test_the_shipped_comparison_ran_on_two_gpus() -> None:
    assert "parallel-comparison" not in waiting(repo_root())


def test_a_pending_block_gives_its_own_reason(tmp_path: Path) -> None:
    put(tmp_path, "engine-logits-check", "static", check="PENDING", notes=["no weights on this host"])
    assert waiting(tmp_path)["engine-logits-check"] == "no weights on this host"
    assert "engine-logits-check" not in section(report(tmp_path), "结论")


def test_a_failure_is_reported_as_one(tmp_path: Path) -> None:
    put(tmp_path, "quick-A", check="FAIL")
    assert "**FAIL**" in section(report(tmp_path), "结论")
    assert "| FAIL | quick-A" in section(report(tmp_path), "最低证据")


def test_shipped_evidence_is_named_as_such_and_gives_way_to_a_run(tmp_path: Path) -> None:
    put(tmp_path, "quick-A", directory="docs/evidence")
    text = report(tmp_path)
    assert "手册附带 · shipped" in section(text, "结论")
    assert "| PASS | quick-A, 手册附带 · shipped" in section(text, "最低证据")
    put(tmp_path, "quick-A", "cpu-engine")
    assert "手册附带 · shipped" not in report(tmp_path)


def test_the_logs_of_5_7_settle_what_was_reclaimed(tmp_path: Path) -> None:
    """5.7.1 cancels through the server and overloads it; the strongest of the logs is named."""
    put_log(tmp_path, "runtime-cpu", {"event": "finished", "reason": "cancelled"})
    assert "runtime-cpu" in section(report(tmp_path), "最低证据")
    put_log(tmp_path, "server-cancel-gpu", {"event": "finished", "reason": "cancelled"}, simulated=False)
    assert "server-cancel-gpu" in section(report(tmp_path), "最低证据")


def test_a_broken_block_is_listed_and_claims_nothing(tmp_path: Path) -> None:
    put(tmp_path, "quick-A", notes=["/home/someone/x"])
    (tmp_path / "runs" / "attention.json").write_text('{"check": "PASS", "schema"')
    text = report(tmp_path)
    assert "`runs/attention.json`" in section(text, "不可用的文件")
    assert "`runs/quick-A.json`" in section(text, "不可用的文件")
    assert "还没有结果块" in text
    assert "block unusable" in waiting(tmp_path)["attention"]


def test_a_log_records_reclaiming_with_its_evidence_type(tmp_path: Path) -> None:
    put_log(tmp_path, "runtime-cpu", {"event": "finished", "reason": "length"})
    assert "PENDING" in section(report(tmp_path), "最低证据").splitlines()[-3]
    put_log(tmp_path, "runtime-cpu", *({"event": "finished", "reason": "cancelled"},) * 2)
    text = report(tmp_path)
    assert "runtime-cpu (完整接口的 CPU 模拟" in section(text, "最低证据")
    assert "cancelled 2 | 是 · yes" in section(text, "事件日志")
    put_log(tmp_path, "client-cancel", {"event": "finished", "reason": "cancelled"}, simulated=False)
    assert "client-cancel (真实 GPU 测量" in section(report(tmp_path), "最低证据")


def test_a_cut_off_or_foreign_log_proves_nothing(tmp_path: Path) -> None:
    put_log(tmp_path, "runtime-cpu", {"event": "finished", "reason": "cancelled"}, complete=False)
    (tmp_path / "runs" / "client-cancel.jsonl").write_text("not json\n")
    text = report(tmp_path)
    assert "runtime-cpu (" not in section(text, "最低证据")
    assert "`runs/client-cancel.jsonl`: no event log" in text


def test_missing_records_come_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "environment.txt").write_text("torch")
    text = report(tmp_path)
    assert "`runs/environment.txt`: 有 · present" in text
    assert 'git -C "$NANO_DIR" rev-parse HEAD > runs/source-head.txt' in text


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/e2e/final_report.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(repo_root() / "src")}
    return subprocess.run(command, cwd=repo_root(), env=environment, capture_output=True, text=True, timeout=120)


def test_the_program(tmp_path: Path) -> None:
    put(tmp_path, "quick-A")
    out = tmp_path / "report.json"
    for arguments in (["--init-notes"], [], ["--out", str(out)]):
        done = script("--root", str(tmp_path), *arguments)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "COLLECTED"), done.stderr
    assert "quick-A" in (tmp_path / "runs" / "final-report.md").read_text(encoding="utf-8")
    assert len(list((tmp_path / "notes").iterdir())) == 16
    assert json.loads(out.read_text())["result"]["conclusions"] == ["quick-A"]


def test_the_program_refuses_a_root_that_does_not_exist(tmp_path: Path) -> None:
    assert script("--root", str(tmp_path / "nowhere")).returncode == 2


def test_a_note_in_another_encoding_counts_as_written(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    final_report.init_notes(notes)
    (notes / "attention.md").write_bytes("我的推导".encode("gbk"))
    by_name = {note.name: note for note in final_report.NOTES}
    assert final_report.is_written(notes, by_name["attention"])
    assert not final_report.is_written(notes, by_name["tokenizer"])
    assert "notes/attention.md" in report(tmp_path)


def test_a_file_in_the_place_of_the_notes_is_kept_and_named(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(LabError, match=r"notes cannot hold the note templates.*nothing was made"):
        final_report.init_notes(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"
