"""The tokenizer computation, on the teaching tokenizer and on the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanolab.errors import LabError
from nanolab.principles.text import TEXT, load_tokenizer, tokenize


def test_teaching_tokenizer_round_trip(tiny_model: Path) -> None:
    result = tokenize(load_tokenizer(tiny_model))

    assert result.decoded == TEXT
    assert len(result.ids) == len(result.token_pieces) == len(result.pieces_decoded_alone)
    assert all(0 <= i < result.vocabulary_size for i in result.ids)
    assert TEXT in result.chat_template_text


def test_real_tokenizer(qwen3_tokenizer: Path) -> None:
    tokenizer = load_tokenizer(qwen3_tokenizer)
    result = tokenize(tokenizer)

    assert result.decoded == TEXT
    assert result.tokenizer_sha256 == "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
    assert len(result.ids) < len(TEXT)  # a token is not a character
    assert "\N{REPLACEMENT CHARACTER}" in "".join(result.pieces_decoded_alone)  # a piece of a character
    assert result.chat_template_text == (
        f"<|im_start|>user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert tokenize(tokenizer, "Hello").ids == [9707]


def test_missing_tokenizer_names_the_command_that_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"no tokenizer\.json in .*download_model\.py --model"):
        load_tokenizer(tmp_path)


def test_tokenizer_without_a_chat_template(no_chat_template: Path) -> None:
    with pytest.raises(LabError, match="has no chat template"):
        tokenize(load_tokenizer(no_chat_template))


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": ', encoding="utf-8")
    with pytest.raises(LabError, match=r"tokenizer\.json is not valid JSON"):
        load_tokenizer(tmp_path)
