"""Conversations are rendered in one place, and a tokenizer without a chat template is refused there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanolab.errors import LabError
from nanolab.models import chat_text
from nanolab.principles.text import load_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]


def test_the_answer_is_opened_and_thinking_is_off(tiny_model: Path) -> None:
    assert chat_text(load_tokenizer(tiny_model), MESSAGES) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_a_tokenizer_without_a_chat_template_is_named_with_the_next_step(no_chat_template: Path) -> None:
    seen = r"no-template: its tokenizer has no chat template.*make_model\.py.*download_model\.py"
    with pytest.raises(LabError, match=seen):
        chat_text(load_tokenizer(no_chat_template), MESSAGES)
