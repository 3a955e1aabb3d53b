"""What to say when a GPU's memory runs out: how much there is, what asked for more, and what to change."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import ConfigError


def ran_out(error: BaseException | None) -> bool:
    """True if memory ran out, also where a later error (a graph capture that had to be broken off) hides it."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def free_memory() -> str:
    free, total = torch.cuda.mem_get_info()
    return f"{free / 2**20:.0f} of {total / 2**20:.0f} MiB free"


@contextmanager
def explained(doing: str, advice: str) -> Iterator[None]:
    """Turn an out-of-memory error into a ConfigError that says what was being done and the way out."""
    try:
        yield
    except RuntimeError as error:
        if not ran_out(error):
            raise
        raise ConfigError(f"the GPU's memory ran out while {doing} ({free_memory()}); {advice}") from error
