"""Playing a plan: one process for many programs, failures that stop nothing, blocks that are not made twice."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from nanolab.errors import LabError
from nanolab.evidence import repo_root
from nanolab.gpu_evidence import Program, Run, Step, archive
from nanolab.gpu_evidence.host import Host, visible_gpus
from nanolab.gpu_evidence.processes import Worker

RECORD = """
    import os, sys
    from pathlib import Path
    from nanolab.evidence import Recording
    from nanolab.verdicts import EvidenceType, Verdict

    out = Path(sys.argv[sys.argv.index("--out") + 1])
    with Recording(out.stem, title_en="t", title_zh="t", out=out, sources=["pyproject.toml"]) as rec:
        rec.result["process"] = os.getpid()
        print("on standard output")
        rec.finish(Verdict.COLLECTED, EvidenceType.STATIC)
"""

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a program of these lines; returns its path."""

    def write(name: str, lines: str) -> str:
        path = tmp_path / name
        path.write_text(dedent(lines), "utf-8")
        return str(path)

    return write


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    def make(budget_s: float = 300.0, gpus: tuple[str, ...] = ()) -> Run:
        host = Host(gpus, flash_attn=False)
        return Run(repo_root(), tmp_path / "out", tmp_path, host, budget_s, say=lambda line: None)

    return make


def recording(name: str, script: str, **more: object) -> Step:
    program = Program(script, ("--out", f"{{out}}/{name}.json"), log=f"{name}.log")
    return Step(name, "5.2", 1, (program,), blocks=(name,), **more)  # type: ignore[arg-type]


def process_of(run: Run, name: str) -> int:
    return int(json.loads((run.out / f"{name}.json").read_text("utf-8"))["result"]["process"])


def test_programs_share_a_process_and_keep_their_output_apart(write: Write, make_run: Callable[..., Run]) -> None:
    script, run = write("record.py", RECORD), make_run()
    outcomes = run.play([recording("one", script), recording("two", script)])
    assert [(outcome.state, outcome.checks) for outcome in outcomes] == [("done", ["COLLECTED"])] * 2
    assert process_of(run, "one") == process_of(run, "two")
    assert run.worker.starts == 1
    assert (run.out / "one.log").read_text("utf-8") == "on standard output\nCOLLECTED\n"
    block = json.loads((run.out / "two.json").read_text("utf-8"))
    assert block["command"][0] == "python"
    assert block["command"][2] == "--out"


def test_a_current_block_is_kept_and_a_stale_one_is_made_again(write: Write, make_run: Callable[..., Run]) -> None:
    script, plan = write("record.py", RECORD), None
    plan = [recording("one", script), recording("two", script)]
    make_run().play(plan)
    first = make_run()
    block = json.loads((first.out / "two.json").read_text("utf-8"))
    block["sources_sha256"]["pyproject.toml"] = "0" * 64
    (first.out / "two.json").write_text(json.dumps(block), "utf-8")
    kept = process_of(first, "one")
    states = [outcome.state for outcome in first.play(plan)]
    assert states == ["current", "done"]
    assert process_of(first, "one") == kept
    assert process_of(first, "two") != kept


def test_a_cpu_block_does_not_count_on_a_gpu_host(write: Write, make_run: Callable[..., Run]) -> None:
    plan = [recording("one", write("record.py", RECORD))]
    make_run().play(plan)
    assert make_run(gpus=("0",)).todo(plan) == {"one"}


def test_a_failure_is_reported_and_stops_only_what_reads_it(write: Write, make_run: Callable[..., Run]) -> None:
    record, broken = write("record.py", RECORD), write("broken.py", "raise ValueError('no such page')\n")
    plan = [
        Step("bad", "5.2", 1, (Program(broken),), files=("bad.log",)),
        recording("reader", record, needs=("bad",)),
        recording("other", record),
    ]
    run = make_run(gpus=("0",))  # on CPU a reader is tried all the same, to rehearse it
    outcomes = {outcome.step.name: outcome for outcome in run.play(plan)}
    assert (outcomes["bad"].state, outcomes["reader"].state) == ("failed", "not run")
    assert "ValueError: no such page" in outcomes["bad"].reason
    assert outcomes["reader"].reason == "needs bad"
    assert outcomes["other"].state == "failed"  # it ran, but its block is not of a GPU
    assert "no current block other.json" in outcomes["other"].reason
    assert run.worker.starts == 1


def test_a_process_that_dies_or_hangs_is_replaced(write: Write, make_run: Callable[..., Run]) -> None:
    dies = write("dies.py", "import os\nos._exit(7)\n")
    hangs = write("hangs.py", "import threading\nthreading.Event().wait()\n")
    run = make_run()
    outcomes = run.play(
        [
            Step("dies", "5.2", 1, (Program(dies),)),
            Step("hangs", "5.2", 1, (Program(hangs, timeout_s=1.0),)),
            recording("after", write("record.py", RECORD)),
        ]
    )
    assert [outcome.state for outcome in outcomes] == ["failed", "failed", "done"]
    assert "ended with 125" in outcomes[0].reason
    assert "ended with 124" in outcomes[1].reason
    assert run.worker.starts == 3


def test_a_program_alone_has_a_process_of_its_own(write: Write, make_run: Callable[..., Run]) -> None:
    script, run = write("record.py", RECORD), make_run()
    alone = Program(script, ("--out", "{out}/apart.json"), alone=True)
    run.play([recording("shared", script), Step("apart", "5.2", 1, (alone,), blocks=("apart",))])
    assert process_of(run, "shared") != process_of(run, "apart")


def test_what_does_not_fit_or_is_missing_is_not_begun(write: Write, make_run: Callable[..., Run]) -> None:
    script = write("record.py", RECORD)
    plan = [
        recording("late", script),
        recording("double", script, gpus=2),
        recording("clone", script, requires="upstream"),
    ]
    reasons = [outcome.reason for outcome in make_run(budget_s=0.5, gpus=("0",)).play(plan)]
    assert reasons[0].startswith("out of time: takes about 1 s")
    assert reasons[1:] == ["needs 2 GPUs, 1 visible", "no upstream clone: give --upstream DIR"]


def test_the_archive_holds_what_is_small_and_no_logits(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("a.json", "b.npz", "c.log", "logs/d.err", "e.bin"):
        (tmp_path / name).write_text("x", "utf-8")
    (tmp_path / "big.jsonl").write_bytes(b"x" * (archive.LARGEST + 1))
    assert archive.write_archive(tmp_path, tmp_path / "evidence.tar.gz") == ["big.jsonl"]
    with tarfile.open(tmp_path / "evidence.tar.gz") as packed:
        assert packed.getnames() == ["a.json", "c.log", "logs/d.err"]


def test_programs_see_one_gpu_and_the_bundled_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANO_DIR", "elsewhere")
    host = Host(("4", "6"), flash_attn=False)
    environment = host.environment(tmp_path, tmp_path)
    assert "NANO_DIR" not in environment
    assert environment["CUDA_VISIBLE_DEVICES"] == "4"
    assert host.environment(tmp_path, tmp_path, "0,1")["CUDA_VISIBLE_DEVICES"] == "4,6"
    assert Host((), flash_attn=False).environment(tmp_path, tmp_path)["CUDA_VISIBLE_DEVICES"] == ""
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2,3"}) == ("2", "3")
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == ()


def test_a_worker_that_is_closed_twice_is_no_error(tmp_path: Path) -> None:
    worker = Worker(tmp_path, {}, tmp_path / "err")
    worker.close()
    worker.close()


def test_a_run_goes_on_from_an_archive(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "logs").mkdir(parents=True)
    new.mkdir()
    (old / "quick-A-gpu.json").write_text("{}")
    (old / "logs" / "quick-A.err").write_text("PASS")
    archive.write_archive(old, tmp_path / "evidence.tar.gz")
    archive.read_archive(tmp_path / "evidence.tar.gz", new)
    assert {p.relative_to(new).as_posix() for p in new.rglob("*") if p.is_file()} == {
        "quick-A-gpu.json",
        "logs/quick-A.err",
    }
    (new / "quick-A-gpu.json").write_text("newer")
    archive.read_archive(tmp_path / "evidence.tar.gz", new)
    assert (new / "quick-A-gpu.json").read_text() == "newer"
    (tmp_path / "no.tar.gz").write_text("not an archive")
    with pytest.raises(LabError, match="of an earlier run"):
        archive.read_archive(tmp_path / "no.tar.gz", new)
