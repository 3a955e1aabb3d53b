"""Turns a scheduled batch into the step buffer's fields.

Host work only, vectorised where a batch can be large: positions, slots and block-table rows of a decode batch are
computed for all sequences at once, and rows of the block table are rewritten only when a sequence took a new block.
"""

import numpy as np

from ..config import Config
from .sequence import Sequence
from .step_buffer import Int32Array, Layout, StepBuffer, StepHeader


class InputBuilder:
    def __init__(self, config: Config, buffer: StepBuffer) -> None:
        self.block_size = config.kvcache_block_size
        self.buffer = buffer
        layout = buffer.decode_layout
        self.rows = {name: buffer.host_field(layout, name) for name in layout.ranges}  # of a decode step
        self.tables = self.rows["block_tables"].reshape(layout.rows, layout.width)
        self._batch: list[Sequence] = []  # whose block tables and sampling options the rows hold
        self.filters_logits = False  # whether any sequence of the step asks for top-k or top-p
        self._num_blocks: Int32Array = np.zeros(0, np.int32)  # blocks each row shows

    def slots(self, block_table: list[int], positions: Int32Array) -> Int32Array:
        """slot = block_table[position // block_size] * block_size + position % block_size"""
        table = np.asarray(block_table, np.int32)
        return table[positions // self.block_size] * self.block_size + positions % self.block_size

    def prefill(self, seqs: list[Sequence]) -> StepHeader:
        """Concatenate the scheduled tokens; block tables travel only if some keys are already in the cache, or if a
        captured step reads them anyway."""
        starts = [seq.num_cached_tokens for seq in seqs]
        lens_q = [seq.num_scheduled_tokens for seq in seqs]
        lens_k = [start + length for start, length in zip(starts, lens_q, strict=True)]
        width = max(len(seq.block_table) for seq in seqs) if any(starts) else 0
        count, rows = sum(lens_q), len(seqs)
        layout = self.buffer.prefill_layout(count, rows, width)
        self.buffer.wait_until_writable()
        field = {name: self.buffer.host_field(layout, name) for name in layout.ranges}
        spans = [np.arange(start, end, dtype=np.int32) for start, end in zip(starts, lens_k, strict=True)]
        tokens = [seq.token_ids[start:end] for seq, start, end in zip(seqs, starts, lens_k, strict=True)]
        slots = [self.slots(seq.block_table, positions) for seq, positions in zip(seqs, spans, strict=True)]
        self.clear(layout)
        field["input_ids"][:count] = np.concatenate(tokens)
        field["positions"][:count] = np.concatenate(spans)
        field["slot_mapping"][:count] = np.concatenate(slots)
        field["context_lens"][:rows] = lens_k
        for name, lengths in (("cu_seqlens_q", lens_q), ("cu_seqlens_k", lens_k)):
            field[name][: rows + 1] = np.cumsum([0, *lengths])
            field[name][rows + 1 :] = sum(lengths)  # padded sequences are empty
        self._fill_sampling(layout, seqs)
        if layout.width:
            for row, seq in zip(field["block_tables"].reshape(layout.rows, -1), seqs, strict=False):
                row[: len(seq.block_table)] = seq.block_table
        self._batch = []  # the staging area no longer holds a decode step
        return StepHeader(True, count, rows, max(lens_q), max(lens_k), layout.width, layout.words)

    def decode(self, seqs: list[Sequence], input_ids: list[int] | None = None) -> StepHeader:
        """One token per sequence: the newest one, whose K and V this step writes; `input_ids` stand in for them."""
        self.buffer.wait_until_writable()
        rows, layout, count = self.rows, self.buffer.decode_layout, len(seqs)
        total = np.array([seq.num_tokens for seq in seqs], np.int32)
        positions = total - 1
        page = positions // self.block_size
        tables_changed = self._update_rows(seqs, page + 1)
        rows["input_ids"][:count] = input_ids or [seq.last_token for seq in seqs]
        rows["input_ids"][count:] = 0
        rows["positions"][:count] = positions
        rows["slot_mapping"][:count] = (
            self.tables[np.arange(count), page] * self.block_size + positions % self.block_size
        )
        rows["slot_mapping"][count:] = -1  # a padded row writes nothing
        rows["context_lens"][:count] = total
        rows["context_lens"][count:] = 0  # and reads nothing
        words = layout.words_before_tables + (count * layout.width if tables_changed else 0)
        return StepHeader(False, count, count, 1, int(total.max()), layout.width, words)

    def _update_rows(self, seqs: list[Sequence], num_blocks: Int32Array) -> bool:
        """Bring block tables and sampling options up to date; True if a block table changed."""
        if seqs == self._batch:
            changed = np.nonzero(num_blocks != self._num_blocks)[0].tolist()
        else:
            changed = list(range(len(seqs)))
            self._fill_sampling(self.buffer.decode_layout, seqs)
        for row in changed:
            table = seqs[row].block_table
            self.tables[row, : len(table)] = table
        self._batch, self._num_blocks = seqs, num_blocks
        return bool(changed)

    def clear(self, layout: Layout) -> None:
        """Stage a step that is all padding: no slot, no context, block 0 everywhere (tables must name one that exists).

        Call `wait_until_writable` first.
        """
        self.buffer.host[: layout.words] = 0
        self.buffer.host_field(layout, "slot_mapping")[:] = -1
        self._batch = []

    def _fill_sampling(self, layout: Layout, seqs: list[Sequence]) -> None:
        temperatures = self.buffer.host_field(layout, "temperatures").view(np.float32)
        temperatures[: len(seqs)] = [seq.params.temperature for seq in seqs]
        self.buffer.host_field(layout, "seeds")[: len(seqs)] = [seq.seed for seq in seqs]
        self.filters_logits = any(seq.params.top_k or seq.params.top_p < 1 for seq in seqs)
