"""The seven subcommands as a learner runs them: facts in the block, verdict last, exit code equal to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

DELTA = pytest.approx(8.15455, abs=5e-6)


def run(principles: ModuleType, *arguments: str) -> Result:
    return CliRunner().invoke(principles.main, list(arguments))


def block_of(principles: ModuleType, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    out = tmp_path / "block.json"
    result = run(principles, *arguments, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "PASS"
    block: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    assert block["check"] == "PASS"
    assert block["evidence"] == "static"
    assert block["engine"] is None
    assert all(block["result"]["checks"].values())
    return block


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["attention"], {"masked_earlier_delta": 0, "unmasked_earlier_delta": DELTA}),
        (["timeline"], {"input_widths": [3, 1, 1]}),
        (["cache"], {"positions_without_cache": 540, "positions_with_cache": 71}),
        (["memory"], {"kib_per_token": 112, "mib_per_4096_tokens": 448, "mib_per_256_token_block": 28}),
        (["memory"], {"gib_per_8_such_requests": 3.5, "pool_blocks": 434, "requests": 27}),
        (["slots"], {"block_table": [17, 5, 23]}),
        (["shapes"], {"packed_qkv_rows": {"q": [0, 2048], "k": [2048, 3072], "v": [3072, 4096]}}),
        (["shapes", "--tp", "2"], {"q_heads_per_rank": 8, "kv_heads_per_rank": 4}),
    ],
)
def test_block(principles: ModuleType, tmp_path: Path, arguments: list[str], facts: dict[str, Any]) -> None:
    result = block_of(principles, tmp_path, *arguments)["result"]
    assert {key: result[key] for key in facts} == facts


@pytest.mark.parametrize("name", ["slots", "slots-of-mine"])
def test_a_block_carries_the_name_of_its_file(principles: ModuleType, tmp_path: Path, name: str) -> None:
    """Two runs of one example, kept side by side, must not be promoted over each other."""
    out = tmp_path / f"{name}.json"
    assert run(principles, "slots", "--out", str(out)).exit_code == 0
    assert json.loads(out.read_text(encoding="utf-8"))["id"] == name


def test_timeline_rounds_are_readable_facts(principles: ModuleType, tmp_path: Path) -> None:
    first = block_of(principles, tmp_path, "timeline")["result"]["rounds"][0]
    assert first == {"inputs": ["t1", "t2", "t3"], "chosen": "t4", "kv_count": 3, "known_token_count": 4}


def test_slots_block(principles: ModuleType, tmp_path: Path) -> None:
    result = block_of(principles, tmp_path, "slots")["result"]
    assert [row["slot"] for row in result["slots"]] == [68, 22, 92]
    assert [row["blocks"] for row in result["blocks_for_tokens"]] == [1, 1, 2]


@pytest.mark.parametrize("which", ["tiny_model", "qwen3_tokenizer"])
def test_tokenizer(principles: ModuleType, tmp_path: Path, which: str, request: pytest.FixtureRequest) -> None:
    model: Path = request.getfixturevalue(which)
    result = block_of(principles, tmp_path, "tokenizer", "--model", str(model))["result"]

    assert result["decoded"] == result["text"]
    assert result["greedy_index"] == 0
    assert result["probabilities"] == pytest.approx([0.66524, 0.24473, 0.09003], abs=5e-6)
    assert {"ids", "token_pieces", "chat_template_text"} <= result.keys()


def test_missing_tokenizer_is_bad_input_and_leaves_no_block(principles: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "tokenizer.json"
    result = run(principles, "tokenizer", "--model", str(tmp_path / "nowhere"), "--out", str(out))

    assert result.exit_code == 2
    assert "download_model.py --model" in result.stderr
    assert not out.exists()


def test_impossible_tp_is_bad_input(principles: ModuleType) -> None:
    result = run(principles, "shapes", "--tp", "3")
    assert result.exit_code == 2
    assert "[1, 2, 4, 8]" in result.stderr


def test_a_broken_check_fails(principles: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(principles, "slot", lambda table, position, size: position)
    out = tmp_path / "slots.json"
    result = run(principles, "slots", "--out", str(out))

    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "FAIL"
    assert "BAD  positions 0, 6, 8 lie in slots 68, 22, 92" in result.stdout
    assert json.loads(out.read_text(encoding="utf-8"))["check"] == "FAIL"


def test_as_printed_in_the_manual(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "scripts/e2e/principles.py", "memory", "--out", str(tmp_path / "memory.json")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "PASS"


def test_the_first_150_lines_hold_the_attention_example_whole(root: Path) -> None:
    """The manual prints exactly these lines: nothing it talks about may be cut off."""
    head = "\n".join((root / "scripts/e2e/principles.py").read_text(encoding="utf-8").splitlines()[:150])
    for name in ("tokenizer_example", "attention_example", "timeline_example"):
        assert f"def {name}(" in head
    assert "# B.1.4" in head
