"""Re-running recorded CPU blocks and comparing every deterministic fact.

A fact is a leaf of `result` that no pattern of the block's `volatile` list covers. Text, integers and
booleans must be equal; floats must agree to a relative 1e-6 (vector units of other CPUs round sums
differently). A block whose prerequisite is missing here (model, working copy, a log) is PENDING, a `gpu` block is
SKIPPED; neither counts as equal.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from nanolab.evidence.schema import Block, load
from nanolab.verdicts import EvidenceType, Verdict

__all__ = ["Outcome", "Rerun", "differences", "facts", "overall", "rerun_order", "verify"]

_FLOAT_RELATIVE = 1e-6
_FLOAT_ABSOLUTE = 1e-9
_TIMEOUT_S = 600


class Outcome(StrEnum):
    SAME = "SAME"
    DIFFERENT = "DIFFERENT"
    PENDING = "PENDING"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True)
class Rerun:
    """What re-running one block showed; `lines` say which facts differ or why it could not run."""

    id: str
    outcome: Outcome
    lines: list[str] = field(default_factory=list)


def overall(reruns: Iterable[Rerun]) -> Verdict:
    """FAIL when a fact differs, PENDING when a block could not be judged or there was none, else PASS."""
    outcomes = {rerun.outcome for rerun in reruns}
    if Outcome.DIFFERENT in outcomes:
        return Verdict.FAIL
    return Verdict.PENDING if Outcome.PENDING in outcomes or Outcome.SAME not in outcomes else Verdict.PASS


def facts(block: Mapping[str, Any]) -> dict[str, Any]:
    """{dotted key: leaf} of the deterministic part of `result`."""
    leaves = _leaves(block["result"], "")
    return {key: leaf for key, leaf in leaves if not _is_volatile(key, block["volatile"])}


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _leaves(item, f"{place}.{key}" if place else str(key))
    else:
        yield place, value


def _is_volatile(key: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(key, pattern) or fnmatchcase(key, f"{pattern}.*") for pattern in patterns)


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line for each deterministic fact, or verdict, of `recorded` that `now` does not repeat."""
    old, new = facts(recorded), facts({**now, "volatile": recorded["volatile"]})
    lines = [f"{key}: recorded {old[key]!r}, now missing" for key in old if key not in new]
    lines += [f"{key}: not recorded, now {new[key]!r}" for key in new if key not in old]
    pairs = [(key, old[key], new[key]) for key in old if key in new]
    lines += [f"{key}: recorded {was!r}, now {is_!r}" for key, was, is_ in pairs if not _equal(was, is_)]
    if recorded["check"] != now["check"]:
        lines.append(f"check: recorded {recorded['check']}, now {now['check']}")
    return lines


def _equal(was: Any, now: Any) -> bool:
    if {type(was), type(now)} in ({float}, {float, int}):  # JSON may write 1.0 as 1; True is no number here
        return math.isclose(was, now, rel_tol=_FLOAT_RELATIVE, abs_tol=_FLOAT_ABSOLUTE)
    return bool(type(was) is type(now) and was == now)


def rerun_order(blocks: list[Block]) -> list[Block]:
    """Blocks whose command reads another block's --out come after it; otherwise by id."""
    remaining = sorted(blocks, key=lambda block: str(block["id"]))
    ordered: list[Block] = []
    while remaining:
        made_later = {_out_of(block): block for block in remaining}
        ready = [b for b in remaining if not any(made_later.get(w, b) is not b for w in b["command"])]
        ordered += ready or remaining  # a cycle cannot be run in any right order: run it as listed
        remaining = [block for block in remaining if block not in ordered]
    return ordered


def _out_of(block: Mapping[str, Any]) -> str | None:
    command: list[str] = block["command"]
    for index, word in enumerate(command):
        if word == "--out" and index + 1 < len(command):
            return command[index + 1]
        if word.startswith("--out="):
            return word.removeprefix("--out=")
    return None


def verify(paths: Iterable[Path], root: Path, scratch: Path) -> Iterator[Rerun]:
    """Re-run every block of `paths`, writing into `scratch` only; yields one Rerun each, as they finish."""
    blocks = [load(path) for path in paths]
    moved: dict[str, str] = {}  # an --out of the manual -> where this verification wrote it
    for block in rerun_order(blocks):
        yield _rerun(block, root, scratch, moved)


def _rerun(block: Block, root: Path, scratch: Path, moved: dict[str, str]) -> Rerun:
    if block["evidence"] == EvidenceType.GPU.value or block["device"]["kind"] == "cuda":
        return Rerun(block["id"], Outcome.SKIPPED, ["needs a GPU; re-run by scripts/maintain/gpu_evidence.py"])
    missing = _missing(block, root, moved)
    if missing:
        return Rerun(block["id"], Outcome.PENDING, [missing])
    command, written = _command(block, scratch, moved)
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=_environment(block, root),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Rerun(block["id"], Outcome.DIFFERENT, [f"could not be run: {error}"])
    if written.is_file():
        return _judge(block, load(written))
    outcome = Outcome.PENDING if done.returncode == Verdict.PENDING.exit_code else Outcome.DIFFERENT
    return Rerun(block["id"], outcome, [f"wrote no block, exit code {done.returncode}", *_tail(done.stderr)])


def _missing(block: Block, root: Path, moved: Mapping[str, str]) -> str | None:
    if any("$ELSEWHERE" in word for word in block["command"]):
        return "its command names a path outside the repository; record it with paths inside"
    kind = (block["engine"] or {}).get("kind")
    if kind == "working-copy" and not Path(os.environ.get("NANO_DIR", root / "engine")).is_dir():
        return "it drives the working copy, which is not there: python scripts/e2e/engine_source.py init"
    for read in (path for word in block["command"] for path in word.split(",") if path.startswith("runs/")):
        if read not in (_out_of(block), *moved) and not any(root.glob(f"{read}*")):  # logits_check.py reads a prefix
            return f"it reads {read}, which is not there: run the commands of its page first, or make lab"
    return None


def _command(block: Block, scratch: Path, moved: dict[str, str]) -> tuple[list[str], Path]:
    """The block's argv with this interpreter and --out moved into `scratch`, and the file it will write."""
    out = _out_of(block)
    name = Path(out).name if out else f"{block['id']}.json"
    target = scratch / block["id"] / name
    target.parent.mkdir(parents=True, exist_ok=True)
    words = [os.path.expandvars(moved.get(word, word)) for word in block["command"]]
    if out is None:
        words += ["--out", str(target)]
    else:
        words = [str(target) if word == out else word.replace(f"--out={out}", f"--out={target}") for word in words]
        moved[out] = str(target)
    if Path(words[0]).name.startswith("python"):
        words[0] = sys.executable
    # A --out without a suffix is a prefix: logits_check.py writes PREFIX.json beside PREFIX.npz.
    return words, target if target.suffix else target.with_suffix(".json")


def _environment(block: Block, root: Path) -> dict[str, str]:
    """This environment with the model and the engine that the block was recorded with."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root / "src"), os.environ.get("PYTHONPATH")]))
    if (block["engine"] or {}).get("kind") == "bundled":
        environment.pop("NANO_DIR", None)
    model = root / "models" / str((block["model"] or {}).get("name"))
    if model.is_dir():
        environment["MODEL_DIR"] = str(model)
    return environment


def _judge(recorded: Block, now: Block) -> Rerun:
    for subject, key in (("model", "weights_sha256"), ("model", "config_sha256")):
        was, is_ = (recorded[subject] or {}).get(key), (now[subject] or {}).get(key)
        if was != is_:
            return Rerun(recorded["id"], Outcome.PENDING, [f"other {subject} here: {key} {is_}, recorded {was}"])
    lines = differences(recorded, now)
    return Rerun(recorded["id"], Outcome.DIFFERENT if lines else Outcome.SAME, lines)


def _tail(text: str) -> list[str]:
    return text.strip().splitlines()[-3:]
