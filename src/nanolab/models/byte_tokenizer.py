"""The teaching tokenizer: one byte of UTF-8, one token; markers after the bytes; a chat template.

Token id = byte value for 0..255, so a reader can check an encoding by hand: "H" is 72, one Chinese character
is three tokens. Ids 256 and up are the markers, then reserved tokens up to the vocabulary size. The two files
are written here rather than saved by a library, so their bytes do not depend on a library's version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
SPECIAL = frozenset(MARKERS[:3])  # skipped when text is decoded for a reader; thinking stays visible

# Qwen3's conversation format: role markers, thinking of earlier turns dropped, an empty thinking block where
# thinking is switched off.
CHAT_TEMPLATE = """\
{%- set turns = namespace(last_question=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set turns.last_question = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- set text = message.content %}
{%- if message.role == 'assistant' and loop.index0 < turns.last_question and '</think>' in text %}
{%- set text = text.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""


def byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level vocabulary (the GPT-2 convention).

    Printable Latin-1 bytes stand for themselves; the others take the letters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def added_tokens(vocab_size: int) -> list[dict[str, Any]]:
    """Markers and reserved tokens, ids 256 to vocab_size - 1."""
    names = [*MARKERS, *(f"<|reserved_{i}|>" for i in range(256 + len(MARKERS), vocab_size))]
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return [
        {"id": 256 + i, "content": name, "special": name in SPECIAL or name.startswith("<|reserved"), **flags}
        for i, name in enumerate(names)
    ]


def tokenizer_json(vocab_size: int) -> dict[str, Any]:
    """tokenizer.json: byte-level BPE without a single merge."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(vocab_size),
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(byte_letters())},
            "merges": [],
        },
    }


def tokenizer_config(vocab_size: int, max_length: int) -> dict[str, Any]:
    """tokenizer_config.json."""
    tokens = added_tokens(vocab_size)
    described = {str(token["id"]): {k: v for k, v in token.items() if k != "id"} for token in tokens}
    return {
        "added_tokens_decoder": described,
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": max_length,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def write(directory: Path, vocab_size: int, max_length: int) -> None:
    """Write both tokenizer files into `directory`."""
    for name, document in (
        ("tokenizer.json", tokenizer_json(vocab_size)),
        ("tokenizer_config.json", tokenizer_config(vocab_size, max_length)),
    ):
        text = json.dumps(document, ensure_ascii=False, indent=2, sort_keys=False)
        (directory / name).write_text(text + "\n", encoding="utf-8")
