"""Keeps the patches in step with the bundled engine that a maintainer edits.

An edit of src/nanoengine away from the patches' lines goes into the baseline. An edit of lines that a patch adds goes
into that patch. Both come out of one operation: take each patch off the new bundle, with a three-way merge against the
bundle the patches were made for where they no longer reverse as they are. Patches are then rewritten so that each one
fits the baseline alone, without offset.

Nothing is written unless the result proves itself (`problems`).
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from nanolab.errors import LabError
from nanolab.evidence import repo_root

from .baseline import (
    BRANCH,
    PACKAGE,
    Pinned,
    build_baseline,
    bundled_root,
    commit_baseline,
    copy_engine,
    engine_files,
    engine_sha256,
    first_line,
    listing_sha256,
    pinned,
    write_frame,
    write_pinned,
)
from .git import apply, git_output, unified_diff
from .series import Patch, read_series
from .stack import edits_between

HISTORY = 200  # commits searched for the bundle that the patches were made for


@dataclass
class Refreshed:
    """What a refresh did."""

    commit: str
    rewritten: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# ---- proving ---------------------------------------------------------------------------------------------


def problems(root: Path | None = None) -> list[str]:
    """Every way in which the stack is broken, one line each; empty means that it proves itself."""
    root = root or repo_root()
    patches = read_series(root)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="nanolab-patches-") as scratch:
        try:
            baseline = build_baseline(Path(scratch) / "baseline", root)
        except LabError as error:
            return [error.format_message()]
        wrong += byte_problems(baseline, bundled_root(root), patches)
        wrong += lattice_problems(baseline, patches)
        commit, tree = commit_baseline(baseline)
        now, recorded = Pinned(commit, tree, BRANCH, engine_sha256(bundled_root(root))), pinned(root)
        if now != recorded:
            wrong.append(f"patches/baseline.json is out of date: it says {recorded.commit}, the baseline is {commit}")
    return wrong


def byte_problems(baseline: Path, bundled: Path, patches: list[Patch]) -> list[str]:
    """Baseline + series must be the bundle, byte for byte."""
    forward = baseline.parent / "forward"
    copy_engine(baseline, forward)
    for patch in patches:
        done = apply(patch.diff, forward)
        if done.returncode != 0:
            return [f"{patch.name} does not apply in the order of the series: {first_line(done.stderr)}"]
    return [f"baseline + series differs from src/{edit.file}: {edit}" for edit in edits_between(bundled, forward)]


def lattice_problems(baseline: Path, patches: list[Patch]) -> list[str]:
    """Every patch must go onto and come off every subset of the others, always giving the same bytes.

    One tree is kept per subset. If each patch takes the tree of S to the tree of S + patch and back, for all S, then
    every order of every subset applies and reverses.
    """
    wrong: list[str] = []
    touched = baseline.parent / "touched"  # the patches' own files are all that can differ
    for name in {name for patch in patches for name in patch.files}:
        (touched / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(baseline / name, touched / name)
    trees: dict[frozenset[str], Path] = {frozenset(): touched}
    for size in range(len(patches)):
        for chosen in itertools.combinations(patches, size):
            names = frozenset(patch.name for patch in chosen)
            for patch in patches:
                if patch.name not in names and names in trees:
                    wrong += edge_problems(trees, names, patch)
    return wrong


def edge_problems(trees: dict[frozenset[str], Path], names: frozenset[str], patch: Patch) -> list[str]:
    """Apply `patch` to the tree of `names`, compare with what another order gave, and take it off again."""
    where = " + ".join(["baseline", *sorted(names)])
    target = names | {patch.name}
    tree = trees[frozenset()].parent / f"on-{'-'.join(sorted(name[:2] for name in names)) or 'baseline'}-{patch.number}"
    copy_engine(trees[names], tree)
    done = apply(patch.diff, tree)
    if done.returncode != 0:
        return [f"{patch.name} does not apply on {where}: {first_line(done.stderr)}"]
    wrong = []
    if not names and "offset" in done.stderr:
        wrong.append(f"{patch.name} applies to the baseline only with an offset")
    if target in trees and edits_between(trees[target], tree):
        wrong.append(f"{patch.name} on {where} gives other bytes than the same patches in another order")
    trees.setdefault(target, tree)
    back = tree.with_name(tree.name + "-back")
    copy_engine(tree, back)
    if apply(patch.diff, back, reverse=True).returncode != 0 or edits_between(trees[names], back):
        wrong.append(f"{patch.name} does not come off {where} + {patch.name} byte for byte")
    shutil.rmtree(back)
    return wrong


# ---- rebuilding ------------------------------------------------------------------------------------------


def refresh(root: Path | None = None, baseline_edits: Path | None = None) -> Refreshed:
    """Rewrite the patches and baseline.json for src/nanoengine as it is now.

    `baseline_edits` is a directory with an edited baseline (from `patches.py baseline`): the patches are then rebuilt
    between it and the bundle, for changes to lines that a patch removes or that only the baseline has.
    """
    root = root or repo_root()
    patches = read_series(root)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="nanolab-refresh-") as scratch:
        work = Path(scratch)
        new = work / "bundled"
        copy_engine(bundled_root(root), new)
        if baseline_edits is None:
            layers = peel(new, old_layers(root, patches, work), patches, work, notes)
        else:
            layers = graft(baseline_edits, root, patches, work, notes)
        texts = standalone_patches(layers, patches, work)
        return install(root, texts, notes)


def old_layers(root: Path, patches: list[Patch], work: Path) -> list[Path] | None:
    """Baseline, baseline + 01, ... up to the bundle that the patches on disk were made for; None if it is lost."""
    top = work / "old-bundled"
    if engine_sha256(bundled_root(root)) == pinned(root).bundled_sha256:
        copy_engine(bundled_root(root), top)
    elif not (
        recall(root, pinned(root).bundled_sha256, top) or recover_bundled(root, pinned(root).bundled_sha256, top)
    ):
        return None
    layers = [top]
    for patch in reversed(patches):
        below = work / f"old-below-{patch.number}"
        copy_engine(layers[0], below)
        done = apply(patch.diff, below, reverse=True)
        if done.returncode != 0:
            return None
        layers.insert(0, below)
    return layers


def memory(root: Path, sha256: str) -> Path:
    return root / ".cache" / "patches" / sha256


def remember(root: Path, sha256: str) -> None:
    """Keep the bundle that the patches are made for, so that a refresh works between commits too."""
    shutil.rmtree(memory(root, sha256).parent, ignore_errors=True)
    copy_engine(bundled_root(root), memory(root, sha256))


def recall(root: Path, sha256: str, dest: Path) -> bool:
    kept = memory(root, sha256)
    if not kept.is_dir() or engine_sha256(kept) != sha256:
        return False
    copy_engine(kept, dest)
    return True


def recover_bundled(root: Path, wanted_sha256: str, dest: Path) -> bool:
    """Find the bundle with this hash in the repository's history and write it to `dest`."""
    commits = git_output("log", f"-{HISTORY}", "--format=%H", "--", f"src/{PACKAGE}", cwd=root).split()
    for commit in commits:
        listing = git_output("ls-tree", "-r", f"{commit}:src", PACKAGE, cwd=root)
        blobs = {}
        for line in listing.splitlines():
            meta, _, name = line.partition("\t")
            if name.endswith((".py", "py.typed")):
                blobs[name] = meta.split()[2]
        if listing_sha256(blobs) == wanted_sha256:
            for name, blob in blobs.items():
                (dest / name).parent.mkdir(parents=True, exist_ok=True)
                (dest / name).write_text(git_output("cat-file", "blob", blob, cwd=root), "utf-8", newline="")
            return True
    return False


def peel(top: Path, old: list[Path] | None, patches: list[Patch], work: Path, notes: list[str]) -> list[Path]:
    """Take the patches off `top`, last first; returns the trees from the baseline up."""
    layers = [top]
    for index in range(len(patches) - 1, -1, -1):
        patch, above = patches[index], layers[0]
        below = work / f"below-{patch.number}"
        copy_engine(above, below)
        if apply(patch.diff, below, reverse=True).returncode != 0:
            if old is None:
                raise LabError(
                    f"{patch.name} no longer reverses from src/nanoengine, and the bundle it was made for is not in "
                    f"the last {HISTORY} commits. Restore src/nanoengine to where `patches.py check` last passed, "
                    "then bring your edits in one by one with a refresh after each."
                )
            for file in patch.files:
                merge(below / file, old[index + 1] / file, old[index] / file, f"{patch.name}: {file}", notes)
        layers.insert(0, below)
    return layers


def merge(target: Path, base: Path, theirs: Path, where: str, notes: list[str]) -> None:
    """Carry the change base -> theirs into `target`, which was edited.

    Where both changed the same lines: an edit of lines that the patch adds belongs to the patch, so the patch's side
    stays; lines that the edit inserts where the patch has none belong to both sides, so they stay too.
    """
    labels = [part for label in ("edited", "base", "patch") for part in ("-L", label)]
    command = ["git", "merge-file", "-p", "--diff3", *labels, str(target), str(base), str(theirs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not 0 <= done.returncode <= 127:
        raise LabError(f"{where}: three-way merge failed: {done.stderr.strip()}")
    if done.returncode:
        notes.append(f"{where}: {done.returncode} edit(s) beside or among the patch's own lines; read the patch once")
    target.write_text(CONFLICT.sub(settle, done.stdout), "utf-8", newline="")


CONFLICT = re.compile(
    r"^<<<<<<< edited\n(?P<edited>.*?)^\|\|\|\|\|\|\| base\n(?P<base>.*?)^=======\n(?P<patch>.*?)^>>>>>>> patch\n",
    re.MULTILINE | re.DOTALL,
)


def settle(conflict: re.Match[str]) -> str:
    return conflict["patch"] if conflict["base"] else conflict["edited"] + conflict["patch"]


def graft(edited: Path, root: Path, patches: list[Patch], work: Path, notes: list[str]) -> list[Path]:
    """Layers over an edited baseline; they must end at the bundle of src/."""
    old = old_layers(root, patches, work)
    if old is None:
        raise LabError(
            "the bundle that the patches were made for is lost; commit one state where `patches.py check` passes"
        )
    bottom = work / "new-baseline"
    copy_engine(edited, bottom)
    layers = [bottom]
    for index, patch in enumerate(patches):
        above = work / f"above-{patch.number}"
        copy_engine(layers[-1], above)
        for file in sorted({*engine_files(old[index + 1]), *engine_files(old[index])}):
            if (old[index] / file).read_bytes() != (old[index + 1] / file).read_bytes():
                merge(above / file, old[index] / file, old[index + 1] / file, f"{patch.name}: {file}", notes)
        layers.append(above)
    if different := edits_between(bundled_root(root), layers[-1]):
        shown = unified_diff(layers[-1], strip_to_package(bundled_root(root), work / "bundled-now"))
        raise LabError(
            f"the edited baseline + series is not the bundled engine ({', '.join(e.file for e in different)}). Make "
            f"both agree: edit the baseline's directory or src/nanoengine. Baseline + series -> bundled:\n{shown}"
        )
    return layers


def strip_to_package(source: Path, dest: Path) -> Path:
    copy_engine(source, dest)
    return dest


def standalone_patches(layers: list[Path], patches: list[Patch], work: Path) -> dict[str, str]:
    """The text of each patch as the difference it makes to the baseline alone."""
    texts = {}
    for index, patch in enumerate(patches):
        stacked = unified_diff(layers[index], layers[index + 1])
        alone = work / f"alone-{patch.number}"
        copy_engine(layers[0], alone)
        done = apply(stacked, alone)
        if done.returncode != 0:
            raise LabError(
                f"{patch.name} touches lines that an earlier patch touches too: {first_line(done.stderr)}; "
                "keep three unchanged lines between the hunks of two patches."
            )
        texts[patch.path.name] = patch.prose + unified_diff(layers[0], alone)
    return texts


def install(root: Path, texts: dict[str, str], notes: list[str]) -> Refreshed:
    """Prove the new stack in a scratch root, then write what changed."""
    with tempfile.TemporaryDirectory(prefix="nanolab-install-") as scratch:
        trial = Path(scratch)
        shutil.copytree(root / "patches", trial / "patches")
        copy_engine(bundled_root(root), trial / "src")
        for name, text in texts.items():
            (trial / "patches" / name).write_text(text, "utf-8", newline="\n")
        baseline = build_baseline(trial / "baseline", trial)
        write_frame(baseline)
        commit, tree = commit_baseline(baseline)
        found = Pinned(commit, tree, BRANCH, engine_sha256(bundled_root(root)))
        write_pinned(found, trial)
        if wrong := problems(trial):
            raise LabError("the refreshed stack does not hold, so nothing was written:\n  " + "\n  ".join(wrong))
    changed = [name for name, text in texts.items() if (root / "patches" / name).read_text("utf-8") != text]
    for name in changed:
        (root / "patches" / name).write_text(texts[name], "utf-8", newline="\n")
    if write_pinned(found, root):
        changed.append("baseline.json")
    remember(root, found.bundled_sha256)
    return Refreshed(commit, changed, notes)
