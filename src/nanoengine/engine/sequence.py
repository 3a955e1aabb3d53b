"""One request as the engine sees it: its token ids, how far its KV has got, and the blocks it owns.

Three counts carry the whole mechanism (the manual's total / cached / scheduled):
  num_tokens            known tokens, prompt and accepted output together
  num_cached_tokens     tokens whose keys and values are in the cache
  num_scheduled_tokens  tokens this step computes; zero between steps
"""

import random
from enum import Enum, auto

from ..sampling_params import SamplingParams

UNREAD = -1  # stands for a token that is still on the device (run_ahead.py)


class SequenceStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


def fold_seed(seed: int) -> int:
    """Any integer seed as the 31 bits that travel to the device."""
    return (seed ^ (seed >> 31) ^ (seed >> 62)) & 0x7FFFFFFF


class Sequence:
    def __init__(self, seq_id: int, token_ids: list[int], params: SamplingParams, block_size: int) -> None:
        self.seq_id = seq_id
        self.status = SequenceStatus.WAITING
        self.finish_reason: str | None = None
        self.params = params
        self.max_tokens = params.max_tokens
        self.ignore_eos = params.ignore_eos
        self.stop_token_ids = params.stop_token_ids
        self.seed = fold_seed(params.seed if params.seed is not None else random.getrandbits(31))
        self.block_size = block_size
        self.token_ids = list(token_ids)
        self.last_token = token_ids[-1]
        self.num_tokens = len(token_ids)
        self.num_prompt_tokens = len(token_ids)
        self.max_total_tokens = len(token_ids) + params.max_tokens
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0
        self.block_table: list[int] = []

    def __len__(self) -> int:
        return self.num_tokens

    def __repr__(self) -> str:
        counts = f"{self.num_tokens}/{self.num_cached_tokens}/{self.num_scheduled_tokens}"
        return f"Sequence({self.seq_id}, {self.status.name}, {counts}, blocks={self.block_table})"

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    @property
    def num_completion_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def completion_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_blocks(self) -> int:
        """Logical blocks that the known tokens span; `block_table` may lag one behind until KV is written."""
        return -(-self.num_tokens // self.block_size)

    def block(self, index: int) -> list[int]:
        """Token ids of logical block `index`; the last one may be partly filled."""
        return self.token_ids[index * self.block_size : (index + 1) * self.block_size]

    def append_token(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.last_token = token_id
        self.num_tokens += 1

    def finish(self, reason: str) -> None:
        """Mark finished; the scheduler gives the blocks back."""
        self.status = SequenceStatus.FINISHED
        self.finish_reason = reason
