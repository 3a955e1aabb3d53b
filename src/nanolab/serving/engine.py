"""What the service needs of an engine: the surface of `nanolab.sources.driver.EngineDriver`, as a protocol.

The Worker, the simulated engine and the tests meet here. Nothing in this package imports an engine: whoever starts
a Worker hands it a function that creates one (see `nanolab.sources`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from nanolab.sources.driver import SamplingSpec, SeqState

__all__ = ["CreateEngine", "Engine", "EngineFacts", "EngineSequence", "SamplingSpec", "SeqState", "StepRecord"]


class EngineSequence(Protocol):
    """The part of an engine's sequence that the service reads; it never writes one."""

    @property
    def seq_id(self) -> int: ...
    @property
    def num_completion_tokens(self) -> int: ...


class StepRecord(Protocol):
    """What one `step()` did. A middle prefill chunk is in `batch` and has nothing in `accepted`."""

    @property
    def phase(self) -> Literal["prefill", "decode"]: ...
    @property
    def batch(self) -> Sequence[SeqState]: ...
    @property
    def accepted(self) -> Sequence[tuple[Any, int]]: ...
    @property
    def finished(self) -> Sequence[Any]: ...


class Engine(Protocol):
    """A live engine. Only the thread that created it may call it."""

    @property
    def tokenizer(self) -> Any: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def attention_backend(self) -> str: ...
    @property
    def execution(self) -> str | None: ...
    @property
    def waiting(self) -> Sequence[Any]: ...
    @property
    def running(self) -> Sequence[Any]: ...
    def add(self, prompt: str | list[int], params: Any) -> Any: ...
    def abort(self, seq: Any) -> bool: ...
    def step(self) -> Any: ...
    def has_work(self) -> bool: ...
    def check(self) -> None: ...
    def finish_reason(self, seq: Any) -> str | None: ...
    def close(self) -> None: ...


CreateEngine = Callable[[], Engine]


@dataclass(frozen=True)
class EngineFacts:
    """What other threads may know about the engine: fixed numbers, read once after it was created."""

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    block_size: int
    num_blocks: int
    device: str
    attention_backend: str
    execution: str | None  # eager | graph; None: simulated

    @classmethod
    def of(cls, engine: Engine) -> EngineFacts:
        return cls(**{name: getattr(engine, name) for name in cls.__dataclass_fields__})
