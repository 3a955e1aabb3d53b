"""Lab 05's conversation, and what a second turn may find in the cache; decided from token ids alone.

R1 is the first question through the chat template. R2 is the template over the old messages, the whole answer and a
new question. What R2 can reuse is neither "the same text" nor "the same session": it is the full blocks of the longest
common run of ids, as far as R1's KV was really written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nanolab.models import chat_text

# Long enough to fill a block of 256 with the real tokenizer too.
SYSTEM = (
    "You are the teaching assistant of a course on serving large language models. Answer in two or three short "
    "sentences, name the data structure you speak of, and give one number where a number exists. The course uses a "
    "small engine with a paged KV cache: a request's keys and values live in blocks of fixed size, a block table "
    "maps logical blocks to physical ones, and full blocks of a finished request stay in the pool until somebody "
    "needs the memory. Prefill computes the keys and values of a prompt, possibly in chunks; decode computes one "
    "position a step. A newly sampled token has no keys and values until the next step has run it through the "
    "model. Requests share a block only if every token before it is the same, because a key depends on all tokens "
    "that came before its position. A step is either a prefill step, whose batch may hold many positions of each "
    "request, or a decode step, whose batch holds exactly one. The scheduler prefers prefill, gives a step at most "
    "its token budget, cuts only the first prompt of a batch into chunks, and takes blocks for a whole prompt when "
    "it is first scheduled. When no block is left for a decode step, the request that came last gives its blocks "
    "back and is prefilled again later, with the tokens it already has. If a student asks about speed, say what was"
    " measured, on which device and under which load; if nothing was measured, say so. If a student asks about "
    "memory, count keys and values of all layers, and say whether you speak of memory that is reserved, in use, or "
    "merely not yet overwritten."
)
# One changed character at the very front, as a clock or a session id in a system message would make.
STAMP = "[2026-11-30 09:41] "
QUESTIONS = ("为什么解码一步只需要计算一个位置？", "那么第二轮对话能复用哪些 block？")

Messages = list[dict[str, str]]


def first_turn() -> Messages:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTIONS[0]}]


def second_turn(answer: str, stamped: bool = False) -> Messages:
    """The old messages, the whole answer, and a new question; `stamped` changes the first characters."""
    messages = [*first_turn(), {"role": "assistant", "content": answer}, {"role": "user", "content": QUESTIONS[1]}]
    if stamped:
        messages[0] = {"role": "system", "content": STAMP + SYSTEM}
    return messages


def templated(tokenizer: Any, messages: Messages) -> list[int]:
    """Ids of the conversation with the assistant's turn opened, thinking off."""
    return list(tokenizer.encode(chat_text(tokenizer, messages), add_special_tokens=False))


def common_prefix(left: list[int], right: list[int]) -> int:
    """How many ids the two begin with in common."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


@dataclass(frozen=True)
class Reuse:
    """What a second prompt can take from a first sequence, worked out from ids and the block size."""

    common: int  # ids in common
    written: int  # positions of the first sequence whose KV was written: all but its last token
    length: int  # of the second prompt
    block_size: int

    @property
    def full_blocks(self) -> int:
        """Blocks whose every id is common and written; a prompt's last block is never matched."""
        return min(
            self.common // self.block_size, self.written // self.block_size, -(-self.length // self.block_size) - 1
        )

    @property
    def cached(self) -> int:
        return self.full_blocks * self.block_size

    @property
    def computed(self) -> int:
        return self.length - self.cached

    def why(self) -> str:
        """One sentence with the numbers."""
        at_limit = self.full_blocks < self.common // self.block_size
        rest = " (the last block of a prompt, or unwritten KV, is never matched)" if at_limit else ""
        return (
            f"{self.common} ids in common hold {self.common // self.block_size} full blocks of {self.block_size}"
            f"{rest}: "
            f"{self.cached} positions come from the cache, {self.computed} of {self.length} must be computed"
        )


def reuse(first_ids: list[int], second_prompt: list[int], block_size: int) -> Reuse:
    """`first_ids` are prompt and outputs of the finished first turn."""
    return Reuse(common_prefix(first_ids, second_prompt), len(first_ids) - 1, len(second_prompt), block_size)
