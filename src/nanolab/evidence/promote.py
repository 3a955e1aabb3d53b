"""Moving a block from runs/ into docs/evidence/, where the manual embeds it.

A block is accepted when it is valid, fresh (its sources have not changed since) and traceable: the bytes that
decided it are those of the current commit, whose id it then carries. A GPU host often has no git history, so
its blocks arrive without a commit and are traced here, by hash.
"""

from __future__ import annotations

import json
from pathlib import Path

from nanolab.errors import LabError
from nanolab.evidence import provenance
from nanolab.evidence.files import format_json, write_atomic
from nanolab.evidence.schema import Block, load
from nanolab.verdicts import EvidenceType, Verdict

__all__ = ["block_paths", "evidence_dir", "promote", "refusals"]

_STRENGTH = list(EvidenceType)  # strongest first


def evidence_dir(root: Path | None = None) -> Path:
    return (root or provenance.repo_root()) / "docs" / "evidence"


def block_paths(directory: Path) -> list[Path]:
    """The blocks of `directory`, in order of id; JSON files that are no blocks are left out."""
    return [path for path in sorted(directory.glob("*.json")) if _looks_like_block(path)]


def _looks_like_block(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True  # let `load` say what is wrong with it
    return isinstance(content, dict) and "schema" in content and "check" in content


def refusals(block: Block, root: Path, replace_weaker: bool = False) -> list[str]:
    """Why `block` may not be promoted, each with what to do; empty when it may."""
    found = []
    if block["check"] == Verdict.PENDING.value:
        found.append("its verdict is PENDING: nothing was measured; run it where the prerequisite exists")
    stale = provenance.stale_files(block, root)
    if stale:
        found.append(f"its sources changed since the run ({', '.join(stale)}); record it again")
    elif not provenance.matches_commit(block, root):
        found.append("its sources are not committed as they ran (dirty tree); commit them, then promote again")
    previous = evidence_dir(root) / f"{block['id']}.json"
    if previous.is_file() and not replace_weaker:
        held = load(previous)["evidence"]
        if _STRENGTH.index(EvidenceType(held)) < _STRENGTH.index(EvidenceType(block["evidence"])):
            found.append(f"it would replace {held} evidence by {block['evidence']}; pass --replace-weaker to do so")
    return found


def promote(path: Path, root: Path | None = None, replace_weaker: bool = False) -> Path:
    """Validate the block at `path` and put it in docs/evidence/ID.json; a LabError gives every reason why not."""
    root = root or provenance.repo_root()
    block = load(path)
    found = refusals(block, root, replace_weaker)
    if found:
        raise LabError(f"{path} is not promoted:" + "".join(f"\n  - {reason}" for reason in found))
    block["git"] = provenance.describe_git(block["sources_sha256"], root)
    target = evidence_dir(root) / f"{block['id']}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, format_json(block).encode())
    return target
