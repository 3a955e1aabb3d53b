"""The teaching patch stack: the engine's baseline, the learner's working copy, the patches between it and the bundle.

    bundled engine  =  baseline + every patch of patches/series, byte for byte
    working copy    =  a git repository that starts at the baseline, with the same commit id on every machine

`build_baseline(dest)` is the one way to the baseline's files. Nothing here overwrites, resets or forces anything in a
learner's directory.
"""

from .baseline import BRANCH, Pinned, baseline_tree, build_baseline, pinned
from .series import Hunk, Patch, find_patch, read_series
from .stack import Edit, PatchState, Standing, State, conflicting_hunks, edits_between, examine, examine_all, put
from .working_copy import WorkingCopy, create

__all__ = [
    "BRANCH",
    "Edit",
    "Hunk",
    "Patch",
    "PatchState",
    "Pinned",
    "Standing",
    "State",
    "WorkingCopy",
    "baseline_tree",
    "build_baseline",
    "conflicting_hunks",
    "create",
    "edits_between",
    "examine",
    "examine_all",
    "find_patch",
    "pinned",
    "put",
    "read_series",
]
