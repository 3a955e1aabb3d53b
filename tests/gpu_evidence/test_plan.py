"""The plan of the evidence run: complete, in order, and with the names that the manual shows."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from nanolab.evidence import repo_root
from nanolab.gpu_evidence import Settings, Step, build_plan, select
from nanolab.manual import commands
from nanolab.manual.commands import Tier

PLAN = build_plan(Settings())


def test_names_and_blocks_are_unique_and_needs_come_first() -> None:
    names = [step.name for step in PLAN]
    blocks = [block for step in PLAN for block in step.blocks]
    assert len(set(names)) == len(names)
    assert len(set(blocks)) == len(blocks)
    for position, step in enumerate(PLAN):
        assert set(step.needs) <= set(names[:position]), step.name


def test_every_step_writes_what_it_says() -> None:
    for step in PLAN:
        words = [word for program in step.programs for word in (*program.arguments, program.log or "")]
        for name in (*step.blocks, *step.files):
            stem = name.removesuffix(".npz").removesuffix(".json")
            servers = [word for server in step.servers for word in server.arguments]
            assert any(word.removeprefix("{out}/").startswith(stem) for word in words + servers), (step.name, name)


def test_every_program_exists_and_the_manuals_evidence_fits_in_ten_minutes_on_one_gpu() -> None:
    for step in PLAN:
        for program in step.programs:
            assert program.script == "-m" or (repo_root() / program.script).is_file(), program.script
    evidence = [step for step in PLAN if step.gpus == 1 and step.blocks and step.requires != "upstream"]
    assert sum(step.seconds for step in evidence) <= 600


def test_every_gpu_block_that_the_manual_announces_is_made() -> None:
    """A page shows a block by its id: an id that no step makes would stay PENDING for ever."""
    made = {block for step in PLAN for block in step.blocks}
    announced = {
        (section.ref, block)
        for section in commands.load(repo_root())
        if section.tier is Tier.GPU
        for block in section.blocks
    }
    missing = {f"{ref}: {block}" for ref, block in announced if not any(fnmatch(name, block) for name in made)}
    assert not missing


def test_a_rehearsal_keeps_every_step_and_marks_every_block() -> None:
    rehearsal = build_plan(Settings(quick=True, suffix="-rehearsal"))
    once = [step.name for step in PLAN if not step.name.endswith(("-2", "-3"))]  # without the repeats of 5.6
    assert [step.name for step in rehearsal] == once
    assert all(block.endswith("-rehearsal") for step in rehearsal for block in step.blocks)


def test_select_brings_what_a_step_reads() -> None:
    chosen = [step.name for step in select(PLAN, ["graph-fallback-check", "quick-A"])]
    assert chosen == ["quick-A", "graph-eager", "graph-patched", "graph-fallback-check"]
    with pytest.raises(Exception, match="no step is called quick-Z"):
        select(PLAN, ["quick-Z"])


def test_two_gpu_steps_are_those_of_5_6() -> None:
    def needs_two(step: Step) -> bool:
        return step.gpus == 2

    assert {step.section[:3] for step in filter(needs_two, PLAN)} == {"5.6"}
