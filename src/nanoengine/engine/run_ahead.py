"""Decode steps that are launched before the tokens of the step before them have been read.

A token is needed twice: by the next step, on the device, where it already is; and by the host, which only keeps it and
looks whether it ends the request. So the host need not stand between two steps:

    launch N + 1   its input ids are step N's candidates, taken on the device
    read N         the tokens replace the placeholders in their sequences; a stop token ends its sequence here
    account N + 1  counts advance as after every step, with a placeholder for each token nobody has read yet

Tokens and finish reasons are those of plain steps. The difference: a sequence that meets a stop token is in one more
batch, and the candidate of that batch is thrown away. Nothing is in flight when `decode_ahead` has ended, nor when it
was closed or interrupted: sequences and queues are then as after a plain step.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from .scheduler import Scheduler
from .sequence import UNREAD, Sequence

if TYPE_CHECKING:
    from .model_runner import ModelRunner


class LaunchedStep:
    """A decode step under way: its candidates on the device, and their copy to the host."""

    def __init__(self, seqs: list[Sequence], token_ids: torch.Tensor) -> None:
        self.seqs = seqs
        self.token_ids = token_ids  # [N]; a captured graph overwrites them in its next replay
        self._copy = torch.empty(token_ids.shape, dtype=token_ids.dtype, pin_memory=token_ids.is_cuda)
        self._copy.copy_(token_ids, non_blocking=True)
        self._copied = torch.cuda.Event() if token_ids.is_cuda else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def rows_of(self, seqs: list[Sequence]) -> list[int]:
        """The row of each sequence in this step's batch."""
        if seqs == self.seqs:
            return list(range(len(seqs)))
        rows = {seq.seq_id: row for row, seq in enumerate(self.seqs)}
        return [rows[seq.seq_id] for seq in seqs]

    def read(self) -> list[int]:
        """Wait for this step, though not for what was launched after it."""
        if self._copied is not None:
            self._copied.synchronize()
        ids: list[int] = self._copy.tolist()
        return ids


def decode_ahead(scheduler: Scheduler, runner: "ModelRunner") -> Iterator[tuple[list[Sequence], int]]:
    """Run decode steps while the next batch is certain; yields (sequences that ended, tokens) for each of them."""
    launched: LaunchedStep | None = None
    try:
        while True:
            following = None
            if scheduler.next_decode_is_certain():
                following = runner.launch(scheduler.schedule()[0], launched)
            if launched is not None:
                scheduler.settle(launched.seqs, launched.read())
            settled, launched = launched, following
            if launched is not None:
                alive = [seq for seq in launched.seqs if not seq.is_finished]
                scheduler.postprocess(alive, [UNREAD] * len(alive), False)
            if settled is not None:
                yield scheduler.take_exhausted(), len(settled.seqs)
            if launched is None:
                return
    except BaseException:  # closed, Ctrl-C, an error: no placeholder and no half-made step may stay behind
        if launched is not None:
            scheduler.settle(launched.seqs, launched.read())
        scheduler.unschedule()
        raise
