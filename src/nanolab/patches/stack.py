"""Where a working copy stands: each patch applied, not applied or in conflict, and what the learner edited."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from nanolab.errors import LabError

from .baseline import build_baseline, copy_engine, engine_files, first_line
from .git import apply
from .series import Hunk, Patch, read_series


class State(StrEnum):
    APPLIED = "applied"
    NOT_APPLIED = "not applied"
    CONFLICT = "conflict"


@dataclass(frozen=True)
class PatchState:
    patch: Patch
    state: State
    reason: str = ""  # why neither direction fits
    hunks: dict[str, State] = field(default_factory=dict)  # conflict: where each hunk stands, "file #n" -> state

    def summary(self) -> str:
        """One line for a table."""
        if self.state is not State.CONFLICT:
            return self.state.value
        counts = {state: list(self.hunks.values()).count(state) for state in State}
        parts = [f"{count} {state}" for state, count in counts.items() if count]
        return f"conflict (hunks: {', '.join(parts)})"


def fits(diff: str, tree: Path, *, reverse: bool) -> bool:
    return apply(diff, tree, reverse=reverse, check=True).returncode == 0


def state_of(diff: str, tree: Path) -> State:
    if fits(diff, tree, reverse=True):
        return State.APPLIED
    return State.NOT_APPLIED if fits(diff, tree, reverse=False) else State.CONFLICT


def examine(patch: Patch, tree: Path) -> PatchState:
    """Whether `patch` is in the tree, could be applied, or neither; then hunk by hunk."""
    state = state_of(patch.diff, tree)
    if state is not State.CONFLICT:
        return PatchState(patch, state)
    reason = first_line(apply(patch.diff, tree, check=True).stderr)
    hunks = {f"{hunk.file} #{hunk.number}": state_of(hunk.diff, tree) for hunk in patch.hunks()}
    return PatchState(patch, state, reason, hunks)


def conflicting_hunks(patch: Patch, tree: Path, *, reverse: bool) -> list[Hunk]:
    """The hunks that do not fit in the wanted direction."""
    return [hunk for hunk in patch.hunks() if not fits(hunk.diff, tree, reverse=reverse)]


@dataclass(frozen=True)
class Edit:
    """One file that differs from what it was compared with."""

    file: str
    kind: str  # changed | added | removed
    added: int = 0
    removed: int = 0

    def __str__(self) -> str:
        return f"{self.kind:8} {self.file}" + (f"  +{self.added} -{self.removed}" if self.kind == "changed" else "")


def edits_between(before: Path, after: Path) -> list[Edit]:
    """The engine files of `after` that differ from those of `before`."""
    names_before, names_after = set(engine_files(before)), set(engine_files(after))
    edits: list[Edit] = []
    for name in sorted(names_before | names_after):
        if name not in names_after:
            edits.append(Edit(name, "removed"))
        elif name not in names_before:
            edits.append(Edit(name, "added"))
        elif (before / name).read_bytes() != (after / name).read_bytes():
            old, new = ((tree / name).read_text("utf-8", errors="replace").splitlines() for tree in (before, after))
            delta = [line[0] for line in difflib.unified_diff(old, new, n=0, lineterm="")][2:]
            edits.append(Edit(name, "changed", delta.count("+"), delta.count("-")))
    return edits


@dataclass(frozen=True)
class Standing:
    """A whole working copy: its patches and, beside them, the learner's own edits."""

    patches: list[PatchState]
    own_edits: list[Edit]

    @property
    def conflicts(self) -> list[PatchState]:
        return [state for state in self.patches if state.state is State.CONFLICT]


def examine_all(tree: Path, root: Path | None = None) -> Standing:
    """Every patch of the series, and what else differs from the baseline. With a conflict, own edits and the patch's
    lines cannot be told apart, and both are listed."""
    states = [examine(patch, tree) for patch in read_series(root)]
    with tempfile.TemporaryDirectory(prefix="nanolab-stack-") as scratch:
        baseline, copy = build_baseline(Path(scratch) / "baseline", root), Path(scratch) / "copy"
        copy_engine(tree, copy)
        remove(reversed([s.patch for s in states if s.state is State.APPLIED]), copy)
        return Standing(states, edits_between(baseline, copy))


def put(patch: Patch, tree: Path, *, reverse: bool) -> None:
    """Apply or reverse the whole patch in `tree`; git writes all of it or nothing."""
    done = apply(patch.diff, tree, reverse=reverse)
    if done.returncode != 0:
        raise LabError(f"{patch.name} was not written: {first_line(done.stderr)}")


def remove(patches: Iterable[Patch], tree: Path) -> None:
    for patch in patches:
        apply(patch.diff, tree, reverse=True)
