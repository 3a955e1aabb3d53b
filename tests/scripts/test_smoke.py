"""smoke.py: the chat template reaches the engine, and only 1 result of 2 tokens from a real pool is a PASS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_scripts import block_of, load_script, run

smoke = load_script("e2e/smoke.py")
GOOD: dict[str, Any] = {"results": 1, "output_tokens": [2], "kv_blocks": 8}


def test_smoke_passes(tiny_model: Path, tmp_path: Path) -> None:
    result, block = block_of(smoke, tmp_path / "smoke.json", "--model", tiny_model)
    assert block["check"] == "PASS", result.output
    assert {name: block["result"][name] for name in ("results", "output_tokens")} == {
        "results": 1,
        "output_tokens": [2],
    }
    assert block["result"]["kv_blocks"] > 0
    assert block["result"]["free_blocks_after"] == block["result"]["kv_blocks"]
    text = block["result"]["prompt_text"]
    assert text.startswith("<|im_start|>user\n")
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert smoke.QUESTION in text


@pytest.mark.parametrize(
    "change", [{"results": 0}, {"results": 2}, {"output_tokens": [1]}, {"output_tokens": [2, 2]}, {"kv_blocks": 0}]
)
def test_anything_else_is_a_fault(change: dict[str, Any]) -> None:
    assert smoke.faults(GOOD) == []
    assert len(smoke.faults(GOOD | change)) == 1


def test_a_fault_ends_fail(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "run_once", lambda driver: GOOD | {"output_tokens": [1], "text": [""]})
    result, block = block_of(smoke, tmp_path / "smoke.json", "--model", tiny_model)
    assert block["check"] == "FAIL"
    assert "BAD  output tokens: saw [1], expected [2]" in result.stderr


def test_no_model_names_the_next_step() -> None:
    result = run(smoke)
    assert result.exit_code == 2
    assert "make_model.py" in result.output


def test_a_tokenizer_without_a_chat_template_names_the_next_step(no_chat_template: Path, tmp_path: Path) -> None:
    out = tmp_path / "smoke.json"
    result = run(smoke, "--model", no_chat_template, "--out", out)
    assert result.exit_code == 2
    assert "tokenizer has no chat template" in result.output and "make_model.py" in result.output
    assert "Traceback" not in result.output and not out.exists()
