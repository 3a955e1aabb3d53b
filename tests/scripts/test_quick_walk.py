"""quick_walk.py: every acceptance value of cases A to D, on the real engine; and proof that a wrong state fails."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_scripts import ROOT, block_of, load_script, run

from nanolab import sources
from nanolab.cases import walk
from nanolab.errors import LabError

quick_walk = load_script("e2e/quick_walk.py")

# case, options, steps, output counts, phases, free blocks after each step: from the specification, not from walk.py
ACCEPTED = [
    ("A", [], 3, [3], "PDD", ["F-1", "F-1", "F"]),
    ("B", [], 5, [2, 5], "PDDDD", ["F-2", "F-1", "F-1", "F-1", "F"]),
    ("B", ["--max-num-seqs", "1"], 7, [2, 5], "PPDDDDD", None),
    ("C", [], 3, [3], "PDD", None),
    ("D", ["--budget", "512"], 3, [2, 2], "PPD", None),
    ("D", ["--budget", "256"], 4, [2, 2], "PPPD", None),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("case", "options", "steps", "counts", "phases", "free"), ACCEPTED)
def test_case_passes(
    tiny_model: Path, tmp_path: Path, dtype: str, case: str, options: list[str], steps: int, counts: list[int],
    phases: str, free: list[str] | None,
) -> None:  # fmt: skip
    out = tmp_path / "block.json"
    result, block = block_of(quick_walk, out, "--case", case, "--dtype", dtype, "--model", tiny_model, *options)
    assert block["check"] == "PASS", result.output
    assert block["evidence"] == "cpu-engine"
    assert (block["result"]["steps"], block["result"]["output_counts"]) == (steps, counts)
    assert f"steps={steps}\noutput_counts={counts}\nPASS\n" == result.stdout
    trace = block["result"]["trace"]
    assert "".join(step["phase"][0].upper() for step in trace) == phases
    assert free is None or [step["free_blocks"] for step in trace] == free


@pytest.fixture(scope="module")
def walks(tiny_model: Path) -> dict[tuple[str, int, int], walk.Walk]:
    """Each case walked once, for the tests that look closer."""
    seen = {}
    for case, budget, seqs in walk.EXPECTED:
        options = walk.ENGINE_OPTIONS | {"max_num_batched_tokens": budget, "max_num_seqs": seqs, "dtype": "float32"}
        with sources.resolve(ROOT / "src").create_engine(tiny_model, **options) as driver:
            seen[case, budget, seqs] = walk.run_walk(driver, walk.CASES[case])
    return seen


Walks = dict[tuple[str, int, int], walk.Walk]


def test_case_a_in_numbers(walks: Walks) -> None:
    steps = walks["A", 512, 2].steps
    assert [step.before["R1"] for step in steps] == [[3, 0, 3], [4, 3, 1], [5, 4, 1]]
    assert [step.after["R1"][:2] for step in steps] == [[4, 3], [5, 4], [6, 0]]
    assert steps[-1].after["R1"][3:] == ["FINISHED", 0]
    assert [len(step.inputs["input_ids"]) for step in steps] == [3, 1, 1]
    assert [step.inputs["context_lens"] for step in steps] == [None, [4], [5]]
    assert [step.shapes["embedding"] for step in steps] == [[3, 128], [1, 128], [1, 128]]


def test_case_b_the_finished_request_is_still_in_its_last_step(walks: Walks) -> None:
    steps = walks["B", 512, 2].steps
    assert steps[1].batch == ["R1", "R2"]
    assert steps[1].after["R1"][3] == "FINISHED"
    assert [step.batch for step in steps[2:]] == [["R2"]] * 3
    one = walks["B", 512, 1].steps
    assert [step.batch for step in one] == [["R1"], ["R2"], ["R1"], ["R2"], ["R2"], ["R2"], ["R2"]]


def test_case_c_crosses_position_256(walks: Walks) -> None:
    steps = walks["C", 512, 2].steps
    p0 = steps[0].blocks["R1"][0]
    assert steps[0].inputs["slot_mapping"] == [p0 * 256 + i for i in range(256)]
    assert steps[1].known_before["R1"] == [257, 256, 2, 1]
    p1 = steps[1].blocks["R1"][1]
    assert [step.inputs["slot_mapping"] for step in steps[1:]] == [[p1 * 256], [p1 * 256 + 1]]
    assert [step.inputs["context_lens"] for step in steps[1:]] == [[257], [258]]
    assert [len(step.blocks["R1"]) for step in steps] == [1, 2, 2]
    assert steps[-1].after["R1"][0] == 259


def test_case_d_discards_middle_candidates(walks: Walks) -> None:
    wide, narrow = walks["D", 512, 2].steps, walks["D", 256, 2].steps
    assert [step.before for step in wide[:2]] == [{"R1": [700, 0, 512]}, {"R1": [700, 512, 188], "R2": [32, 0, 32]}]
    assert wide[0].after["R1"][:3] == [700, 512, 0]
    assert len(wide[1].inputs["input_ids"]) == 220
    assert wide[1].after["R1"][:2] == [701, 700]
    assert wide[1].after["R2"][:2] == [33, 32]
    assert [step.before["R1"][2] for step in narrow[:3]] == [256, 256, 188]
    assert narrow[0].after["R1"][:3] == [700, 256, 0]


# ---- wrong states fail ----------------------------------------------------------------------------------


def corrupt(seen: walk.Walk, place: str) -> walk.Walk:
    wrong = copy.deepcopy(seen)
    step = wrong.steps[1]
    name = step.batch[0]
    if place == "cached":
        step.after[name][1] += 1
    elif place == "slot":
        step.inputs["slot_mapping"][0] += 1
    elif place == "context":
        step.inputs["context_lens"] = [0] * len(step.batch)
    elif place == "free":
        step.free_blocks -= 1
    elif place == "steps":
        wrong.steps.pop()
    elif place == "positions":
        step.inputs["positions"][-1] -= 1
    return wrong


@pytest.mark.parametrize("place", ["cached", "slot", "context", "free", "steps", "positions"])
def test_a_wrong_state_is_named(walks: Walks, place: str) -> None:
    for case in ("A", "B", "C"):
        seen, rows = walks[case, 512, 2], walk.expected_rows(case, 512, 2)
        assert rows is not None
        assert walk.differences(seen, rows, walk.CASES[case]) == []
        wrong = walk.differences(corrupt(seen, place), rows, walk.CASES[case])
        assert wrong, f"{place} of case {case} was not caught"


def test_a_wrong_engine_fails(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose rows differ from the stated ones ends FAIL with the difference on stderr."""
    rows = list(walk.CASE_A)
    rows[1] = ("decode", {"R1": [4, 3, 1]}, {"R1": walk.going(5, 5, 2, 1)}, "F-1")
    monkeypatch.setitem(walk.EXPECTED, ("A", 512, 2), rows)
    result, block = block_of(quick_walk, tmp_path / "a.json", "--case", "A", "--model", tiny_model)
    assert block["check"] == "FAIL"
    assert "BAD  step 2 total, cached, outputs, status, blocks after" in result.stderr
    assert any("saw {'R1': [5, 4, 2, 'RUNNING', 1]}" in note for note in block["notes"])


# ---- options --------------------------------------------------------------------------------------------


def test_settings_without_stated_values_are_only_collected(tiny_model: Path, tmp_path: Path) -> None:
    _, block = block_of(quick_walk, tmp_path / "d.json", "--case", "D", "--budget", "300", "--model", tiny_model)
    assert block["check"] == "COLLECTED"
    assert block["notes"] == ["these settings have no stated values: states were only collected"]


def test_trace_prints_each_state(tiny_model: Path) -> None:
    result = run(quick_walk, "--case", "A", "--trace", "--model", tiny_model)
    assert "  1 prefill R1        3/0/3  ->  4/3  RUNNING" in result.stdout
    assert "  3 decode  R1        5/4/1  ->  6/0  FINISHED" in result.stdout


def test_trace_gives_the_sequences_of_a_step_one_number(tiny_model: Path) -> None:
    result = run(quick_walk, "--case", "B", "--trace", "--model", tiny_model)
    steps = [line.split()[:3] for line in result.stdout.splitlines() if "  ->  " in line]
    assert steps[:4] == [[n, phase, r] for n, phase in (("1", "prefill"), ("2", "decode")) for r in ("R1", "R2")]
    assert [number for number, *_ in steps[4:]] == ["3", "4", "5"]


def test_debug_stops_after_initialisation_with_the_module_at_hand(tiny_model: Path) -> None:
    """`b engine_module.LLMEngine.step` resolves at the prompt, and stops in the first step of a request."""
    commands = "b engine_module.LLMEngine.step\nc\np self.is_finished()\ncl 1\nc\n"
    done = subprocess.run(
        [sys.executable, "scripts/e2e/quick_walk.py", "--case", "A", "--debug", "--model", str(tiny_model)],
        cwd=ROOT, input=commands, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "NANO_DIR": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert "Breakpoint 1 at" in done.stdout, done.stdout + done.stderr
    assert "\n(Pdb) False" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("PASS")
    assert done.returncode == 0


def test_an_unknown_source_names_the_next_step(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"engine_source\.py init"):
        sources.resolve(tmp_path)
    result = run(quick_walk, "--case", "A", "--source", tmp_path, "--model", tiny_model)
    assert result.exit_code == 2


# ---- tensor parallelism ---------------------------------------------------------------------------------

TOKENS = """
import json, os, sys
from nanolab import sources
from nanolab.cases import walk
from nanolab.load.sidebyside import free_port

def main():
    options = walk.ENGINE_OPTIONS | {"max_num_batched_tokens": 512, "max_num_seqs": 2, "dtype": "float32"}
    options |= {"tensor_parallel_size": int(sys.argv[2]), "shm_name": f"quick_walk_{os.getpid()}"}
    options |= {"dist_init_method": f"tcp://127.0.0.1:{free_port()}"}  # others may be testing on this host
    with sources.resolve(sys.argv[3]).create_engine(sys.argv[1], **options) as driver:
        outputs = []
        for case in "ABCD":
            seqs = [driver.add(list(p), sources.SamplingSpec(n, ignore_eos=True))
                    for p, n in zip(walk.CASES[case].prompts, walk.CASES[case].max_tokens)]
            while driver.has_work():
                driver.step()
            outputs.append([seq.completion_token_ids for seq in seqs])
    print(json.dumps(outputs))

if __name__ == "__main__":
    main()
"""


def tokens_of(model: Path, tmp_path: Path, ranks: int) -> Any:
    program = tmp_path / "tokens.py"
    program.write_text(TOKENS, "utf-8")
    done = subprocess.run(
        [sys.executable, str(program), str(model), str(ranks), str(ROOT / "src")],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_two_ranks_choose_the_tokens_of_one(tiny_model: Path, tmp_path: Path) -> None:
    assert tokens_of(tiny_model, tmp_path, 2) == tokens_of(tiny_model, tmp_path, 1)
