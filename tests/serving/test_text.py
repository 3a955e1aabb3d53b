"""Text from tokens: whatever the split, the pieces join to the decoded whole; stop strings cut exactly."""

from __future__ import annotations

from random import Random

import pytest

from nanolab.serving.simulated import ByteTokenizer
from nanolab.serving.text import TextOutput

TOKENIZER = ByteTokenizer()


def pieces(data: bytes, sizes: Random, stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    output = TextOutput(TOKENIZER, stop)
    out, rest = [], list(data)
    while rest:
        size = 1 + int(sizes.random() * 3)
        out.append(output.feed(rest[:size]))
        rest = rest[size:]
    out.append(output.finish())
    return out, output.stopped


@pytest.mark.parametrize("seed", range(40))
def test_pieces_join_to_the_whole(seed: int) -> None:
    rng = Random(seed)
    characters = "abc é 中文 🙂 "
    text = "".join(characters[int(rng.random() * len(characters))] for _ in range(60))
    got, _ = pieces(text.encode(), rng)
    assert "".join(got) == text
    assert not any("\ufffd" in piece for piece in got)


@pytest.mark.parametrize("seed", range(40))
def test_bytes_that_are_no_text_decode_like_the_whole(seed: int) -> None:
    rng = Random(seed)
    data = bytes(int(rng.random() * 256) for _ in range(80))
    got, _ = pieces(data, rng)
    assert "".join(got) == data.decode("utf-8", errors="replace")


def test_half_a_character_is_held_back() -> None:
    output = TextOutput(TOKENIZER)
    assert [output.feed([byte]) for byte in "中".encode()] == ["", "", "中"]


@pytest.mark.parametrize("seed", range(60))
def test_stop_strings_cut_at_their_first_occurrence(seed: int) -> None:
    rng = Random(seed)
    text = "".join("ab"[int(rng.random() * 2)] for _ in range(40))
    stops = ("abba", "bbb")
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    got, stopped = pieces(text.encode(), rng, stops)
    assert stopped is bool(found)
    assert "".join(got) == (text[: min(found)] if found else text)


def test_nothing_comes_after_a_stop() -> None:
    output = TextOutput(TOKENIZER, ("x",))
    assert output.feed(list(b"ax")) == "a"
    assert output.feed(list(b"more")) == ""
    assert output.finish() == ""
