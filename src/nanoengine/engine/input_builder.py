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
        self._decode_batch: list[Sequence] = []  # whose rows the staged block tables hold
        self._decode_blocks: Int32Array = np.zeros(0, np.int32)  # and how many blocks each row shows

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
        fill = self._filler(layout)
        spans = [np.arange(start, end, dtype=np.int32) for start, end in zip(starts, lens_k, strict=True)]
        fill("input_ids", np.concatenate([seq.token_ids[s:e] for seq, s, e in zip(seqs, starts, lens_k, strict=True)]))
        fill("positions", np.concatenate(spans))
        fill(
            "slot_mapping", np.concatenate([self.slots(seq.block_table, p) for seq, p in zip(seqs, spans, strict=True)])
        )
        fill("context_lens", lens_k)
        fill("cu_seqlens_q", np.cumsum([0, *lens_q]))
        fill("cu_seqlens_k", np.cumsum([0, *lens_k]))
        self._fill_sampling(layout, seqs)
        tables = self.buffer.host_field(layout, "block_tables").reshape(len(seqs), width)
        tables[:] = 0  # padding must name a block that exists
        for row, seq in zip(tables if width else [], seqs, strict=bool(width)):
            row[: len(seq.block_table)] = seq.block_table
        self._decode_batch = []  # the staging area no longer holds a decode step's block tables
        return StepHeader(True, layout.tokens, layout.rows, max(lens_q), max(lens_k), width, layout.words)

    def decode(self, seqs: list[Sequence]) -> StepHeader:
        """One token per sequence: the newest one, whose K and V this step writes."""
        layout, count = self.buffer.decode_layout, len(seqs)
        fill = self._filler(layout)
        total = np.array([seq.num_tokens for seq in seqs], np.int32)
        positions = total - 1
        tables = self.buffer.host_field(layout, "block_tables").reshape(layout.rows, -1)
        tables_changed = self._update_tables(tables, seqs, positions // self.block_size + 1)
        blocks = tables[np.arange(count), positions // self.block_size]
        fill("input_ids", [seq.last_token for seq in seqs])
        fill("positions", positions)
        fill("slot_mapping", blocks * self.block_size + positions % self.block_size, padding=-1)
        fill("context_lens", total, padding=0)
        self._fill_sampling(layout, seqs)
        words = layout.words_before_tables + (count * layout.width if tables_changed else 0)
        return StepHeader(False, count, count, 1, int(total.max()), layout.width, words)

    def clear_decode(self) -> None:
        """Stage a decode step of padded rows only: no slot, no context, block 0 everywhere."""
        layout = self.buffer.decode_layout
        fill = self._filler(layout)
        for name in layout.ranges:
            fill(name, [], padding=-1 if name == "slot_mapping" else 0)
        self._decode_batch = []

    def _update_tables(self, tables: Int32Array, seqs: list[Sequence], num_blocks: Int32Array) -> bool:
        """Bring the staged rows up to date; True if any changed."""
        changed = list(range(len(seqs)))
        if seqs == self._decode_batch:
            changed = np.nonzero(num_blocks != self._decode_blocks)[0].tolist()
        for row in changed:
            table = seqs[row].block_table
            tables[row, : len(table)] = table
        self._decode_batch, self._decode_blocks = seqs, num_blocks
        return bool(changed)

    def _fill_sampling(self, layout: Layout, seqs: list[Sequence]) -> None:
        self.buffer.host_field(layout, "temperatures").view(np.float32)[: len(seqs)] = [
            s.params.temperature for s in seqs
        ]
        self.buffer.host_field(layout, "seeds")[: len(seqs)] = [s.seed for s in seqs]

    def _filler(self, layout: Layout):  # type: ignore[no-untyped-def]
        """A function that writes one field; `padding` fills the rows beyond the batch."""
        self.buffer.wait_until_writable()

        def fill(name: str, values: object, padding: int | None = None) -> None:
            field = self.buffer.host_field(layout, name)
            values = np.asarray(values, np.int32)
            field[: len(values)] = values
            if padding is not None:
                field[len(values) :] = padding

        return fill
