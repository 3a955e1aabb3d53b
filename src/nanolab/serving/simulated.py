"""A simulated engine: the scheduling surface of the real one, deterministic tokens, no model and no torch.

Waiting and running queues, chunked prefill under a token budget, blocks that are taken and given back, preemption
when they run out: as in the engine's baseline, without prefix reuse. Token i of a request depends on its prompt and
on i alone, so a test can say what every request must receive whatever runs beside it. Faults are injected through
`SimulatedHooks`, which run on the thread that owns the engine, at named points of a step.
"""

from __future__ import annotations

import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nanolab.serving.engine import SamplingSpec, SeqState

__all__ = ["ByteTokenizer", "SimulatedConfig", "SimulatedEngine", "SimulatedHooks", "simulated_tokens"]

Hook = Callable[["SimulatedEngine"], None]


def _nothing(engine: SimulatedEngine) -> None:
    """The default hook."""


@dataclass
class SimulatedHooks:
    """Called by the engine on its owner's thread; a hook that raises is an engine failure at that point."""

    before_step: Hook = _nothing  # the batch has not been chosen yet
    in_step: Hook = _nothing  # the batch is chosen, no token accepted yet
    after_step: Hook = _nothing  # tokens are accepted, finished sequences have left
    on_check: Hook = _nothing  # the owner is idle and asks whether the engine is whole
    on_close: Hook = _nothing


@dataclass(frozen=True)
class SimulatedConfig:
    vocab_size: int = 260  # 256 bytes and four markers
    max_model_len: int = 1024
    max_num_batched_tokens: int = 256
    max_num_seqs: int = 4
    kvcache_block_size: int = 16
    num_kvcache_blocks: int = 512
    step_seconds: float = 0.0  # how long a step takes, scheduling included
    eos_token_id: int = 257


@dataclass(eq=False, slots=True)
class SimulatedSequence:
    seq_id: int
    num_prompt_tokens: int
    tokens: bytes  # the output pattern of this prompt
    params: SamplingSpec
    num_tokens: int
    num_cached_tokens: int = 0
    num_scheduled_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def num_completion_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens


@dataclass(slots=True)
class SimulatedStep:
    phase: Literal["prefill", "decode"]
    batch: tuple[SeqState, ...]
    accepted: list[tuple[SimulatedSequence, int]] = field(default_factory=list)
    finished: list[SimulatedSequence] = field(default_factory=list)


def simulated_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """The first `count` output tokens for `prompt`: lower-case letters, so that they are readable as text."""
    pattern = _pattern(prompt)
    return [pattern[index % len(pattern)] for index in range(count)]


def _pattern(prompt: Sequence[int]) -> bytes:
    seed = zlib.crc32(array("q", prompt).tobytes())
    return bytes(97 + (seed >> (index % 24) ^ index * 7) % 26 for index in range(64))


class SimulatedEngine:
    """Drop-in for `nanolab.sources.driver.EngineDriver`."""

    def __init__(self, config: SimulatedConfig | None = None, hooks: SimulatedHooks | None = None) -> None:
        self.config = config or SimulatedConfig()
        self.hooks = hooks or SimulatedHooks()
        self.engine = self
        self.tokenizer = ByteTokenizer()
        self.vocab_size = self.config.vocab_size
        self.max_model_len = self.config.max_model_len
        self.max_num_seqs = self.config.max_num_seqs
        self.block_size = self.config.kvcache_block_size
        self.num_blocks = self.config.num_kvcache_blocks
        self.device = "cpu"
        self.attention_backend = "simulated"
        self.execution = None
        self.closed = False
        self._waiting: deque[SimulatedSequence] = deque()
        self._running: deque[SimulatedSequence] = deque()
        self._free: deque[int] = deque(range(self.num_blocks))
        self._ended: list[SimulatedSequence] = []
        self._next_id = 0

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def waiting(self) -> list[SimulatedSequence]:
        return list(self._waiting)

    @property
    def running(self) -> list[SimulatedSequence]:
        return list(self._running)

    def add(self, prompt: str | list[int], params: SamplingSpec) -> SimulatedSequence:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if not ids or self._blocks_for(len(ids)) > self.num_blocks:
            raise ValueError(f"{len(ids)} prompt tokens do not fit a pool of {self.num_blocks} blocks")
        sequence = SimulatedSequence(self._next_id, len(ids), _pattern(ids), params, len(ids))
        self._next_id += 1
        self._waiting.append(sequence)
        return sequence

    def abort(self, seq: SimulatedSequence) -> bool:
        for queue in (self._waiting, self._running):
            if seq in queue:
                queue.remove(seq)
                self._end(seq, "cancelled")
                return True
        return False

    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def finish_reason(self, seq: SimulatedSequence) -> str | None:
        return seq.finish_reason

    def step(self) -> SimulatedStep:
        self.hooks.before_step(self)
        model_ends = time.monotonic() + self.config.step_seconds
        batch = self._select_prefill()
        phase: Literal["prefill", "decode"] = "prefill" if batch else "decode"
        batch = batch or self._select_decode()
        record = SimulatedStep(phase, tuple(map(_state, batch)))
        if self.config.step_seconds:
            time.sleep(max(0.0, model_ends - time.monotonic()))
        self.hooks.in_step(self)
        for sequence in batch:
            self._accept(sequence, record)
        record.finished += self._ended
        self._ended = []
        self.hooks.after_step(self)
        return record

    def check(self) -> None:
        self.hooks.on_check(self)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.hooks.on_close(self)

    # ---- scheduling --------------------------------------------------------------------------------------

    def _select_prefill(self) -> list[SimulatedSequence]:
        """From the head of `waiting` within the budget; only the first sequence may be chunked."""
        batch: list[SimulatedSequence] = []
        budget = self.config.max_num_batched_tokens
        while self._waiting and budget and len(batch) < self.max_num_seqs:
            sequence = self._waiting[0]
            missing = sequence.num_tokens - sequence.num_cached_tokens
            if (batch and missing > budget) or not self._give_blocks(sequence, sequence.num_tokens):
                break
            sequence.num_scheduled_tokens = min(missing, budget)
            budget -= sequence.num_scheduled_tokens
            batch.append(sequence)
            if sequence.num_scheduled_tokens < missing:
                break
            self._running.append(self._waiting.popleft())
        return batch

    def _select_decode(self) -> list[SimulatedSequence]:
        batch: list[SimulatedSequence] = []
        while self._running and len(batch) < self.max_num_seqs:
            sequence = self._running.popleft()
            if self._make_room(sequence):
                sequence.num_scheduled_tokens = 1
                batch.append(sequence)
        self._running.extendleft(reversed(batch))
        return batch

    def _make_room(self, sequence: SimulatedSequence) -> bool:
        """Preempt the newest runners until `sequence` has its next block; False if it had to go itself."""
        while not self._give_blocks(sequence, sequence.num_tokens):
            if self._running:
                self._preempt(self._running.pop())
            elif self._blocks_for(sequence.num_tokens) > self.num_blocks:
                self._end(sequence, "kv_exhausted")
                self._ended.append(sequence)
                return False
            else:
                self._preempt(sequence)
                return False
        return True

    def _preempt(self, sequence: SimulatedSequence) -> None:
        """Give the blocks back and wait to be prefilled again, behind a half-prefilled head, which holds blocks."""
        self._take_blocks(sequence)
        sequence.num_cached_tokens = 0
        behind_head = bool(self._waiting and self._waiting[0].block_table)
        self._waiting.insert(1 if behind_head else 0, sequence)

    def _accept(self, sequence: SimulatedSequence, record: SimulatedStep) -> None:
        sequence.num_cached_tokens += sequence.num_scheduled_tokens
        sequence.num_scheduled_tokens = 0
        if sequence.num_cached_tokens < sequence.num_tokens:
            return  # a chunk in the middle of a prompt
        token = sequence.tokens[sequence.num_completion_tokens % len(sequence.tokens)]
        sequence.num_tokens += 1
        record.accepted.append((sequence, token))
        if token in sequence.params.stop_token_ids:
            self._leave(sequence, "stop", record)
        elif sequence.num_completion_tokens >= sequence.params.max_tokens:
            self._leave(sequence, "length", record)

    def _leave(self, sequence: SimulatedSequence, reason: str, record: SimulatedStep) -> None:
        self._running.remove(sequence)
        self._end(sequence, reason)
        record.finished.append(sequence)

    def _end(self, sequence: SimulatedSequence, reason: str) -> None:
        sequence.finish_reason = reason
        self._take_blocks(sequence)

    # ---- blocks ------------------------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _give_blocks(self, sequence: SimulatedSequence, tokens: int) -> bool:
        needed = self._blocks_for(tokens) - len(sequence.block_table)
        if needed > len(self._free):
            return False
        for _ in range(needed):
            sequence.block_table.append(self._free.popleft())
        return True

    def _take_blocks(self, sequence: SimulatedSequence) -> None:
        self._free.extend(reversed(sequence.block_table))
        sequence.block_table.clear()


def _state(sequence: SimulatedSequence) -> SeqState:
    return SeqState(
        sequence.seq_id,
        sequence.num_tokens,
        sequence.num_cached_tokens,
        sequence.num_scheduled_tokens,
        tuple(sequence.block_table),
    )


class ByteTokenizer:
    """UTF-8 bytes as token ids, with the few members of a transformers tokenizer that the service uses."""

    eos_token_id = 257
    chat_template = "bytes"

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token for token in token_ids if token < 256).decode("utf-8", errors="replace")

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        turns = "".join(f"<{message['role']}>{message['content']}\n" for message in messages)
        return f"{turns}<assistant>"
