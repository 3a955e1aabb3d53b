"""How rank 0 of a tensor-parallel engine tells the other ranks what to run.

One block of shared memory holds the current message; one semaphore per rank says that it is new. The block is as large
as the largest step the engine can schedule, and a message that would not fit is refused, never cut.
A rank has always read a message before the next is written: every step ends in a collective that all ranks join.
Posting a semaphore takes no lock and waits for nobody, so a rank that was killed cannot stop rank 0 here.
"""

from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.synchronize import Semaphore

import numpy as np

from ..errors import ConfigError, RankError
from .step_buffer import Int32Array, StepHeader

HEADER_WORDS = 16
EXIT = -1
Signal = Semaphore  # counts the messages that one rank has not read


class RankChannel:
    def __init__(
        self,
        name: str,
        max_words: int,
        events: list[Signal],
        *,
        create: bool,
        check_ranks: Callable[[], None] | None = None,
    ) -> None:
        """`check_ranks` raises if a rank has died; rank 0 asks it before every step, which all ranks must join."""
        size = 4 * (HEADER_WORDS + max_words)
        try:
            self._memory = SharedMemory(name=name, create=create, size=size if create else 0)
        except FileExistsError as error:
            raise ConfigError(
                f"shared memory {name!r} exists: another engine uses the name, or one was killed; "
                f"stop that engine, start this one under another name, or remove /dev/shm/{name}"
            ) from error
        self._words: Int32Array = np.ndarray(size // 4, np.int32, self._memory.buf)
        self._events = events
        self._owner = create
        self._check_ranks = check_ranks

    def publish(self, header: StepHeader, words: Int32Array) -> None:
        """Rank 0: make one step visible to every other rank."""
        capacity = len(self._words) - HEADER_WORDS
        if len(words) > capacity:
            raise RankError(f"a step of {4 * len(words)} bytes does not fit the {4 * capacity} bytes of shared memory")
        if self._check_ranks is not None:
            self._check_ranks()
        fields = header.to_words()
        self._words[1 : 1 + len(fields)] = fields
        self._words[HEADER_WORDS : HEADER_WORDS + len(words)] = words
        self._signal(len(words))

    def publish_exit(self) -> None:
        self._signal(EXIT)

    def receive(self) -> tuple[StepHeader, Int32Array] | None:
        """Other ranks: wait for a step; None when the engine ends or rank 0 is gone."""
        (event,) = self._events
        while not event.acquire(timeout=1.0):
            parent = parent_process()
            if parent is not None and not parent.is_alive():
                return None
        count = int(self._words[0])
        if count == EXIT:
            return None
        header = StepHeader.from_words(self._words[1 : 1 + len(StepHeader.__dataclass_fields__)].tolist())
        return header, self._words[HEADER_WORDS : HEADER_WORDS + count]

    def close(self) -> None:
        """Let go of the memory; the rank that made it also removes it."""
        self._words = np.zeros(0, np.int32)
        self._memory.close()
        if self._owner:
            self._memory.unlink()

    def _signal(self, count: int) -> None:
        self._words[0] = count
        for event in self._events:
            event.release()
