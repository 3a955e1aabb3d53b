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
        """Concatenate the scheduled tokens; block tables travel only if some keys are already in the cache."""
        starts = [seq.num_cached_tokens for seq in seqs]
        lens_q = [seq.num_scheduled_tokens for seq in seqs]
        lens_k = [start + length for start, length in zip(starts, lens_q, strict=True)]
        has_history = any(starts)
        width = max(len(seq.block_table) for seq in seqs) if has_history else 0
        layout = Layout(sum(lens_q), len(seqs), width)
        self.buffer.wait_until_writable()
        field = {name: self.buffer.host_field(layout, name) for name in layout.ranges}
        spans = [np.arange(start, end, dtype=np.int32) for start, end in zip(starts, lens_k, strict=True)]
        tokens = [seq.token_ids[start:end] for seq, start, end in zip(seqs, starts, lens_k, strict=True)]
        slots = [self.slots(seq.block_table, positions) for seq, positions in zip(seqs, spans, strict=True)]
        field["input_ids"][:] = np.concatenate(tokens)
        field["positions"][:] = np.concatenate(spans)
        field["slot_mapping"][:] = np.concatenate(slots)
        field["context_lens"][:] = lens_k
        field["cu_seqlens_q"][:] = np.cumsum([0, *lens_q])
        field["cu_seqlens_k"][:] = np.cumsum([0, *lens_k])
        self._fill_sampling(layout, seqs)
        tables = field["block_tables"].reshape(len(seqs), width)
        tables[:] = 0  # padding must name a block that exists
        for row, seq in zip(tables if width else [], seqs, strict=bool(width)):
            row[: len(seq.block_table)] = seq.block_table
        self._batch = []  # the staging area no longer holds a decode step
        return StepHeader(True, layout.tokens, layout.rows, max(lens_q), max(lens_k), width, layout.words)

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

    def clear_decode(self) -> None:
        """Stage a decode step of padded rows only: no slot, no context, block 0 everywhere."""
        self.buffer.wait_until_writable()
        for name, field in self.rows.items():
            field[:] = -1 if name == "slot_mapping" else 0
        self._batch = []

    def _fill_sampling(self, layout: Layout, seqs: list[Sequence]) -> None:
        temperatures = self.buffer.host_field(layout, "temperatures").view(np.float32)
        temperatures[: len(seqs)] = [seq.params.temperature for seq in seqs]
        self.buffer.host_field(layout, "seeds")[: len(seqs)] = [seq.seed for seq in seqs]
        self.filters_logits = any(seq.params.top_k or seq.params.top_p < 1 for seq in seqs)
