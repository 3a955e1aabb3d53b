"""scripts/maintain/evidence.py and what stands behind it: promote, verify, list."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanolab.errors import LabError
from nanolab.evidence import load, repo_root
from nanolab.evidence.promote import block_paths, promote
from nanolab.evidence.verify import Outcome, Rerun, differences, facts, overall, rerun_order, verify
from nanolab.verdicts import Verdict

from .conftest import Repository

Make = Callable[..., dict[str, Any]]
CUDA = {"kind": "cuda", "name": "A GPU", "count": 1, "driver": "1", "cuda": "12.9"}


def script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/maintain/evidence.py", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(repo_root() / "src")}
    return subprocess.run(command, cwd=repo_root(), env=environment, capture_output=True, text=True, timeout=120)


def test_promote_copies_a_traceable_block_and_gives_it_the_commit(repository: Repository, make_block: Make) -> None:
    unknown = {"commit": None, "dirty": None}  # recorded on a GPU host without history
    path = repository.write_block(make_block(sources_sha256=repository.hashes(), git=unknown))
    target = promote(path, repository.root)
    assert target == repository.root / "docs" / "evidence" / "quick-A.json"
    assert load(target)["git"] == {"commit": repository.git("rev-parse", "HEAD"), "dirty": False}
    first = target.read_bytes()
    promote(path, repository.root)
    assert target.read_bytes() == first


def test_promote_refuses_with_every_reason(repository: Repository, make_block: Make) -> None:
    path = repository.write_block(make_block(check="PENDING"))
    with pytest.raises(LabError) as caught:
        promote(path, repository.root)
    assert "PENDING" in caught.value.message
    assert "sources changed since the run (src/cases.py)" in caught.value.message
    assert not (repository.root / "docs").exists()


def test_promote_refuses_sources_that_are_not_committed(repository: Repository, make_block: Make) -> None:
    repository.source.write_text("CASES = 2\n")
    path = repository.write_block(make_block(sources_sha256=repository.hashes()))
    with pytest.raises(LabError, match="not committed as they ran"):
        promote(path, repository.root)
    repository.commit()
    promote(path, repository.root)


def test_promote_refuses_an_invalid_block(repository: Repository, make_block: Make) -> None:
    path = repository.write_block(make_block(notes=["/home/someone"]))
    with pytest.raises(LabError, match="absolute path"):
        promote(path, repository.root)


def test_promote_does_not_weaken_evidence_by_accident(repository: Repository, make_block: Make) -> None:
    sources = repository.hashes()
    promote(repository.write_block(make_block(sources_sha256=sources, evidence="gpu", device=CUDA)), repository.root)
    weaker = repository.write_block(make_block(sources_sha256=sources))
    with pytest.raises(LabError, match="replace gpu evidence by cpu-engine"):
        promote(weaker, repository.root)
    assert load(promote(weaker, repository.root, replace_weaker=True))["evidence"] == "cpu-engine"


def test_block_paths_skips_json_that_is_no_block(repository: Repository, make_block: Make) -> None:
    path = repository.write_block(make_block())
    (path.parent / "index.json").write_text("{}")
    (path.parent / "broken.json").write_text("{")
    assert [p.name for p in block_paths(path.parent)] == ["broken.json", "quick-A.json"]


def test_volatile_patterns_cover_a_key_and_what_is_below(make_block: Make) -> None:
    result = {"steps": 3, "time": {"init": 1.0, "run": 2.0}, "runs": [{"s": 1.5, "n": 2}, {"s": 1.6, "n": 2}]}
    block = make_block(result=result, volatile=["time", "runs.*.s"])
    assert facts(block) == {"steps": 3, "runs.0.n": 2, "runs.1.n": 2}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({"steps": 3, "x": 1.0, "t": 9.0}, []),
        ({"steps": 3, "x": 1.0 + 1e-9, "t": 9.0}, []),
        ({"steps": 3, "x": 1, "t": 9.0}, []),
        ({"steps": 4, "x": 1.0, "t": 9.0}, ["steps: recorded 3, now 4"]),
        ({"steps": 3, "x": 1.01, "t": 9.0}, ["x: recorded 1.0, now 1.01"]),
        ({"steps": True, "x": 1.0, "t": 0}, ["steps: recorded 3, now True"]),
        ({"x": 1.0}, ["steps: recorded 3, now missing"]),
        ({"steps": 3, "x": 1.0, "new": [1]}, ["new.0: not recorded, now 1"]),
    ],
)
def test_differences(make_block: Make, now: dict[str, Any], expected: list[str]) -> None:
    recorded = make_block(result={"steps": 3, "x": 1.0, "t": 5.0}, volatile=["t"])
    assert differences(recorded, make_block(result=now)) == expected


def test_a_changed_verdict_differs(make_block: Make) -> None:
    assert differences(make_block(), make_block(check="REVIEW")) == ["check: recorded PASS, now REVIEW"]


def test_a_block_that_reads_another_comes_after_it(make_block: Make) -> None:
    compare = make_block(id="a-compare", command=["python", "x", "--lhs", "runs/z", "--out", "runs/c.json"])
    collect = make_block(id="z-collect", command=["python", "x", "--out", "runs/z"])
    assert [block["id"] for block in rerun_order([compare, collect])] == ["z-collect", "a-compare"]


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([], Verdict.PENDING),
        ([Outcome.SAME, Outcome.SKIPPED], Verdict.PASS),
        ([Outcome.SKIPPED], Verdict.PENDING),
        ([Outcome.SAME, Outcome.PENDING], Verdict.PENDING),
        ([Outcome.SAME, Outcome.PENDING, Outcome.DIFFERENT], Verdict.FAIL),
    ],
)
def test_overall_verdict(outcomes: list[Outcome], verdict: Verdict) -> None:
    assert overall([Rerun("x", outcome) for outcome in outcomes]) is verdict


PROGRAM = """
import sys, time
from pathlib import Path
from nanolab.errors import LabError, MissingPrerequisite
from nanolab.evidence import Recording
from nanolab.verdicts import EvidenceType, Verdict
words = [part for word in sys.argv[1:] for part in word.split("=")]
arguments = dict(zip(words[::2], words[1::2]))
if "--need-gpu" in arguments:
    print("no GPU on this host", file=sys.stderr)
    sys.exit(4)
if "--read" in arguments:
    assert Path(arguments["--read"] + ".json").is_file(), "the other block was not made first"
out = Path(arguments["--out"])
with Recording("t", title_en="t", title_zh="t", out=out if out.suffix else out.with_suffix(".json"),
               sources=["pyproject.toml"]) as rec:
    rec.result.update(answer=6 * 7, seconds=time.time())
    rec.volatile.append("seconds")
    rec.finish(Verdict.PASS, EvidenceType.STATIC)
"""


@pytest.fixture
def recorded(repository: Repository, make_block: Make) -> Callable[..., Path]:
    """Write a block whose command is PROGRAM, with the given answer and further arguments."""
    (repository.root / "program.py").write_text(PROGRAM)

    def make(id: str, *arguments: str, answer: int = 42, **changes: Any) -> Path:
        block = make_block(id=id, evidence="static", engine=None, model=None, volatile=["seconds"])
        block["command"] = ["python", "program.py", *arguments]
        block["result"] = {"answer": answer, "seconds": 1.0}
        return repository.write_block({**block, **changes})

    return make


def test_verify_reruns_and_compares(
    repository: Repository, recorded: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repo_root() / "src"))
    paths = [
        recorded("same", "--out", "runs/same.json"),
        recorded("wrong", "--out=runs/wrong.json", answer=41),
        recorded("prefix", "--out", "runs/prefix"),
        recorded("after", "--read", "runs/prefix", "--out", "runs/after.json"),
        recorded("gpu", "--out", "runs/g.json", evidence="gpu", device=CUDA),
        recorded("waits", "--need-gpu", "1", "--out", "runs/p.json"),
        recorded("broken", "--read", "nowhere", "--out", "runs/b.json"),
        recorded("unfed", "--read", "runs/nowhere", "--out", "runs/u.json"),
        recorded("away", "--log", "$ELSEWHERE/x", "--out", "runs/a.json"),
    ]
    reruns = {rerun.id: rerun for rerun in verify(paths, repository.root, tmp_path / "scratch")}
    outcomes = {id: rerun.outcome.value for id, rerun in reruns.items()}
    assert outcomes == {
        "same": "SAME",
        "wrong": "DIFFERENT",
        "prefix": "SAME",
        "after": "SAME",
        "gpu": "SKIPPED",
        "waits": "PENDING",
        "broken": "DIFFERENT",
        "unfed": "PENDING",
        "away": "PENDING",
    }
    assert reruns["wrong"].lines == ["answer: recorded 41, now 42"]
    assert "no GPU on this host" in reruns["waits"].lines[-1]
    assert "the other block was not made first" in reruns["broken"].lines[-1]
    assert reruns["unfed"].lines[-1].startswith("it reads runs/nowhere, which is not there")
    # The recorded block itself is never written to.
    assert json.loads((repository.root / "runs" / "same.json").read_text())["result"]["seconds"] == 1.0


def test_script_promote_says_why_and_fails(repository: Repository, make_block: Make) -> None:
    path = repository.write_block(make_block())  # its sources are not this repository's
    done = script("promote", path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "FAIL"
    assert "sources changed" in done.stderr


def test_script_list_shows_blocks_and_flags_invalid_ones(repository: Repository, make_block: Make) -> None:
    path = repository.write_block(make_block())
    done = script("list", path.parent)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "COLLECTED")
    assert done.stdout.splitlines()[1].split() == [
        "quick-A",
        "PASS",
        "cpu-engine",
        "Some",
        "CPU",
        "2026-01-02",
        "stale",
    ]
    repository.write_block(make_block(id="bad", notes=["/home/x"]))
    done = script("list", path.parent)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "FAIL")


def test_script_verify_fails_on_a_difference(recorded: Callable[..., Path]) -> None:
    path = recorded("t", "--out", "runs/t.json", command=["python", "-c", PROGRAM, "--out", "x.json"], answer=41)
    done = script("verify", path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "FAIL")
    assert "answer: recorded 41, now 42" in done.stdout


def test_script_usage_error_is_2() -> None:
    assert script("promote").returncode == 2
    assert script("verify", "no-such-file.json").returncode == 2
