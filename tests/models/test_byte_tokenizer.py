"""The byte tokenizer: exact for any text, ids that can be checked by hand, a chat template in Qwen3's format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from nanolab.models.byte_tokenizer import MARKERS

REAL = Path(os.environ.get("QWEN3_TOKENIZER_DIR", Path(__file__).parents[3] / "shared" / "data" / "qwen3-tokenizer"))
TEXT = "Hello, 你好！\n\tnaïve 🙂 x=1"


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model / "tokenizer.json"))


def test_one_byte_one_token(tokenizer: Any) -> None:
    assert tokenizer.encode(TEXT) == list(TEXT.encode())
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.encode("Hello") == [72, 101, 108, 108, 111]


@settings(deadline=None)  # a busy machine is not a fault
@given(text=st.text())
def test_any_text_returns_unchanged(plain: Tokenizer, text: str) -> None:
    if any(marker in text for marker in MARKERS) or "<|reserved_" in text:
        return
    ids = plain.encode(text).ids
    assert ids == list(text.encode())
    assert plain.decode(ids) == text


def test_vocabulary_covers_the_manuals_cases(tokenizer: Any) -> None:
    assert len(tokenizer) == 512 > 355  # case C: ids 100..355
    assert all(tokenizer.convert_ids_to_tokens(i) is not None for i in range(512))
    assert isinstance(tokenizer.decode(list(range(512))), str)


def test_markers_are_single_tokens(tokenizer: Any) -> None:
    assert [tokenizer.encode(marker) for marker in MARKERS] == [[256], [257], [258], [259], [260]]
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.pad_token_id) == ("<|im_end|>", 258, 256)
    assert tokenizer.decode([72, 258, 256], skip_special_tokens=True) == "H"
    assert tokenizer.decode([259, 72, 260], skip_special_tokens=True) == "<think>H</think>"


QUESTION = {"role": "user", "content": "你好"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi"}

CONVERSATIONS = [
    ([QUESTION], {"add_generation_prompt": True}),
    ([QUESTION], {"add_generation_prompt": True, "enable_thinking": False}),
    ([QUESTION], {"add_generation_prompt": True, "enable_thinking": True}),
    ([SYSTEM, QUESTION], {"add_generation_prompt": False}),
    ([SYSTEM, QUESTION, ANSWER, QUESTION], {"add_generation_prompt": True, "enable_thinking": False}),
    ([QUESTION, {"role": "assistant", "content": "Hi"}, QUESTION], {"add_generation_prompt": True}),
]


def test_the_template_marks_roles(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template([SYSTEM, QUESTION], tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n你好<|im_end|>\n<|im_start|>assistant\n"
    )
    silent = tokenizer.apply_chat_template(
        [SYSTEM, QUESTION], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert silent == text + "<think>\n\n</think>\n\n"


def test_thinking_of_earlier_turns_is_dropped(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template([QUESTION, ANSWER, QUESTION], tokenize=False)
    assert "hm" not in text
    assert "<|im_start|>assistant\nHi<|im_end|>\n" in text


@pytest.mark.skipif(not REAL.is_dir(), reason="no real Qwen3 tokenizer: set QWEN3_TOKENIZER_DIR to its directory")
@pytest.mark.parametrize(("messages", "options"), CONVERSATIONS)
def test_the_template_writes_what_qwen3s_writes(tokenizer: Any, messages: Any, options: Any) -> None:
    real = AutoTokenizer.from_pretrained(REAL)
    assert real.encode("Hello") == [9707]
    ours, theirs = (t.apply_chat_template(messages, tokenize=False, **options) for t in (tokenizer, real))
    assert ours == theirs
