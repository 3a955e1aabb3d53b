"""Lab 05: what a second turn finds is what its token ids say, and the explanation's arithmetic holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_scripts import block_of, load_script, run

from nanolab.cases import multi_turn
from nanolab.cases.multi_turn import Reuse

lab = load_script("labs/05_multi_turn.py")


@pytest.fixture(scope="module")
def seen(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """stdout and block of a run with small blocks."""
    out = tmp_path_factory.mktemp("turns") / "m.json"
    result, block = block_of(lab, out, "--block-size", "16", "--max-tokens", "8", "--model", tiny_model)
    assert block["check"] == "PASS", result.output
    return result.stdout, block


def test_hit_miss_and_cold(seen: tuple[str, dict[str, Any]]) -> None:
    turns = seen[1]["result"]["turns"]
    assert turns["R1"]["cached"] == 0
    assert turns["R2 hit"]["cached"] > 1000
    assert turns["R2 miss"]["cached"] == 0
    assert turns["R2 cold"]["cached"] == 0
    assert turns["R2 hit"]["prompt_tokens"] == turns["R2 cold"]["prompt_tokens"]
    shared = turns["R2 hit"]["cached"] // 16
    assert turns["R2 hit"]["block_table"][:shared] == turns["R1"]["block_table"][:shared]
    for turn in turns.values():
        assert turn["cached"] + turn["computed_in_prefill"] == turn["prompt_tokens"]


def test_the_template_parts_the_two_turns(seen: tuple[str, dict[str, Any]]) -> None:
    """R1's prompt ends in an empty thinking block; the history of R2 has none: the answer's KV cannot be reused."""
    result = seen[1]["result"]
    place = result["parting"]["hit"]
    assert "<think>" in place["first"]["text"]
    assert "<think>" not in place["second"]["text"]
    assert place["at"] < len(result["ids"]["R1"])
    assert result["expected"]["R2 hit"]["cached"] <= place["at"]
    assert result["answer_ids_survive"] is True


def test_both_prefixes_are_printed_as_ids(seen: tuple[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    stdout, block = seen
    ids = block["result"]["ids"]
    assert f"R1 ids ({len(ids['R1'])}): [257, 115, " in stdout
    assert f"R2 ids ({len(ids['R2'])}): [257, 115, " in stdout
    assert "positions come from the cache" in stdout
    lab.say(block["result"], all_ids=True)
    assert f"R2 ids ({len(ids['R2'])}): {ids['R2']}" in capsys.readouterr().out


def test_the_teaching_model_hits_with_the_default_block_size_too(tiny_model: Path, tmp_path: Path) -> None:
    _, block = block_of(lab, tmp_path / "m.json", "--max-tokens", "4", "--model", tiny_model)
    assert block["check"] == "PASS"
    assert block["result"]["turns"]["R2 hit"]["cached"] % 256 == 0
    assert block["result"]["turns"]["R2 hit"]["cached"] > 0


def test_a_tokenizer_without_a_chat_template_names_the_next_step(no_chat_template: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.json"
    result = run(lab, "--model", no_chat_template, "--out", out)
    assert result.exit_code == 2
    assert "tokenizer has no chat template" in result.output and "make_model.py" in result.output
    assert "Traceback" not in result.output and not out.exists()


@pytest.mark.parametrize(
    ("common", "written", "length", "size", "cached"),
    [
        (1000, 1000, 1200, 256, 768),
        (255, 1000, 1200, 256, 0),
        (256, 1000, 1200, 256, 256),
        (512, 511, 1200, 256, 256),  # the last token's KV was never written
        (512, 600, 512, 256, 256),  # the last block of a prompt is never matched
        (513, 600, 513, 256, 512),
        (40, 100, 100, 16, 32),
    ],
)
def test_reuse_by_hand(common: int, written: int, length: int, size: int, cached: int) -> None:
    found = Reuse(common, written, length, size)
    assert found.cached == cached
    assert found.computed == length - cached
    assert f"{cached} positions come from the cache" in found.why()


def test_common_prefix() -> None:
    assert multi_turn.common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert multi_turn.common_prefix([1, 2], [1, 2, 4]) == 2
    assert multi_turn.common_prefix([], [1]) == 0
    assert multi_turn.common_prefix([9], [1]) == 0


def test_an_engine_that_finds_other_blocks_fails(seen: tuple[str, dict[str, Any]]) -> None:
    result = seen[1]["result"]
    assert lab.faults(result) == []
    for name, cached in (("R2 hit", 16), ("R2 miss", 16), ("R2 cold", 16), ("R1", 16)):
        turns = {**result["turns"], name: {**result["turns"][name], "cached": cached}}
        assert any(line.startswith(name) for line in lab.faults({**result, "turns": turns}))


def test_a_conversation_without_room_is_refused(tiny_model: Path) -> None:
    result = run(lab, "--max-model-len", "512", "--model", tiny_model)
    assert result.exit_code == 2
    assert "raise --max-model-len" in result.output


def test_blocks_larger_than_the_conversation_say_so(seen: tuple[str, dict[str, Any]]) -> None:
    """A second turn without a full common block shows nothing: that is no PASS."""
    result = seen[1]["result"]
    turns = {**result["turns"], "R2 hit": {**result["turns"]["R2 cold"]}}
    expected = {**result["expected"], "R2 hit": {**result["expected"]["R2 hit"], "cached": 0}}
    assert lab.faults({**result, "turns": turns, "expected": expected}) == [
        "the second turn shares no full block; choose a smaller --block-size"
    ]
