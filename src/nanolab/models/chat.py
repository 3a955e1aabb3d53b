"""A conversation as the text that a model was trained on."""

from __future__ import annotations

from typing import Any

from nanolab.errors import LabError


def chat_text(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """`messages` through the model's chat template, the assistant's turn opened, thinking off."""
    if not tokenizer.chat_template:
        raise LabError(
            f"{tokenizer.name_or_path}: its tokenizer has no chat template, and the prompt here is a conversation; "
            "pass --model with one that has: python scripts/e2e/make_model.py --preset tiny --out models/tiny, or "
            "Qwen3's by python scripts/e2e/download_model.py --model models/Qwen3-0.6B"
        )
    options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    return str(tokenizer.apply_chat_template(messages, **options))
