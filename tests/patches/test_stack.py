"""The stack as a whole: bytes, orders, offsets, and its list of files."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from nanolab.evidence import repo_root
from nanolab.patches import build_baseline, edits_between, read_series
from nanolab.patches import refresh as stack
from nanolab.patches.baseline import bundled_root, copy_engine, engine_files
from nanolab.patches.git import apply

from .conftest import NAMES

TOUCHES = {
    "01-step-trace": {"engine/llm_engine.py"},
    "02-graph-eager-fallback": {"engine/model_runner.py"},
    "03-fair-scheduler": {"config.py", "engine/scheduler.py"},
    "04-replica-isolation": {"config.py", "engine/llm_engine.py", "engine/model_runner.py"},
}


def read_tree(tree: Path) -> dict[str, bytes]:
    return {name: (tree / name).read_bytes() for name in engine_files(tree)}


def test_the_series_lists_the_four_patches_in_order() -> None:
    assert tuple(patch.name for patch in read_series()) == NAMES


def test_the_stack_proves_itself() -> None:
    """What `patches.py check` and CI run: bytes, commit id, every subset on and off."""
    assert stack.problems() == []


def test_baseline_plus_series_is_the_bundle_byte_for_byte(tmp_path: Path) -> None:
    tree = build_baseline(tmp_path)
    for patch in read_series():
        assert apply(patch.diff, tree).returncode == 0
    assert read_tree(tree) == read_tree(bundled_root())
    assert edits_between(bundled_root(), tree) == []


def test_each_patch_fits_the_baseline_at_its_own_line_numbers(tmp_path: Path) -> None:
    for patch in read_series():
        tree = build_baseline(tmp_path / patch.number)
        said = apply(patch.diff, tree).stderr
        assert "Applied patch" in said and "offset" not in said and "fuzz" not in said


def test_all_64_ordered_selections_apply_and_reverse(tmp_path: Path) -> None:
    """Every order of every non-empty selection goes on; each comes off again in its own and in the opposite order."""
    baseline = build_baseline(tmp_path / "baseline")
    patches = {patch.name: patch for patch in read_series()}
    orders = [order for size in range(1, 5) for order in itertools.permutations(NAMES, size)]
    assert len(orders) == 64
    at_baseline, by_selection = read_tree(baseline), {}
    for number, order in enumerate(orders):
        tree = tmp_path / f"order-{number}"
        copy_engine(baseline, tree)
        for name in order:
            done = apply(patches[name].diff, tree)
            assert done.returncode == 0, f"{order}: {name} does not apply: {done.stderr}"
        applied = read_tree(tree)
        assert by_selection.setdefault(frozenset(order), applied) == applied, f"{order} gives other bytes"
        back = order if number % 2 else reversed(order)
        for name in back:
            done = apply(patches[name].diff, tree, reverse=True)
            assert done.returncode == 0, f"{order}: {name} does not reverse: {done.stderr}"
        assert read_tree(tree) == at_baseline, f"{order} does not come off byte for byte"


def test_patches_touch_only_what_the_readme_says() -> None:
    readme = (repo_root() / "patches" / "README.md").read_text("utf-8")
    for patch in read_series():
        assert {name.removeprefix("nanoengine/") for name in patch.files} == TOUCHES[patch.name]
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{patch.name}`"))
        assert set(re.findall(r"`([a-z_/]+\.py)`", row)) == TOUCHES[patch.name]


def test_patches_explain_themselves_and_are_plain_unified_diffs() -> None:
    for patch in read_series():
        assert len(patch.prose.splitlines()) >= 3
        assert not re.search(r"^(index|old mode|new mode|rename|Binary) ", patch.diff, re.MULTILINE)
        assert all(line.rstrip() == line or line == " " for line in patch.diff.splitlines()), "trailing blanks"
        assert "\r" not in patch.text
