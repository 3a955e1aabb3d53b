"""The memory one step's inputs travel through: filled on the host, moved to the device in one copy.

Every field is a range of one int32 buffer (float fields are the same bytes, seen as float32). A decode step uses a
fixed layout, so that a captured CUDA graph always finds each field at the address it was captured with. The block
tables come last: a decode step that changed none of them sends only what stands before.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from ..config import Config
from ..utils.context import StepInputs

Int32Array = npt.NDArray[np.int32]

TOKEN_FIELDS = ("input_ids", "positions", "slot_mapping")
ROW_FIELDS = ("context_lens", "temperatures", "seeds")
BOUNDARY_FIELDS = ("cu_seqlens_q", "cu_seqlens_k")
FLOAT_FIELDS = ("temperatures",)


@dataclass(frozen=True)
class Layout:
    """Where each field of a step with `tokens` inputs and `rows` sequences lies; block tables are `width` wide."""

    tokens: int
    rows: int
    width: int

    @cached_property
    def ranges(self) -> dict[str, slice]:
        sizes = dict.fromkeys(TOKEN_FIELDS, self.tokens)
        sizes |= dict.fromkeys(ROW_FIELDS, self.rows)
        sizes |= dict.fromkeys(BOUNDARY_FIELDS, self.rows + 1)
        sizes["block_tables"] = self.rows * self.width
        ends = np.cumsum(list(sizes.values())).tolist()
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    @property
    def words(self) -> int:
        return self.ranges["block_tables"].stop

    @property
    def words_before_tables(self) -> int:
        return self.ranges["block_tables"].start


@dataclass(frozen=True)
class StepHeader:
    """What a rank needs to know to find its way in a step's words."""

    is_prefill: bool
    num_tokens: int
    num_seqs: int
    max_seqlen_q: int
    max_seqlen_k: int
    table_width: int  # 0: no block tables
    words: int  # how many words of the buffer are new

    def to_words(self) -> list[int]:
        return [int(getattr(self, name)) for name in self.__dataclass_fields__]

    @classmethod
    def from_words(cls, words: list[int]) -> "StepHeader":
        return cls(bool(words[0]), *words[1:])


class StepBuffer:
    """Host staging area and device memory for one step, reused by every step."""

    def __init__(self, config: Config, device: torch.device) -> None:
        rows, width = config.max_num_seqs, config.max_blocks_per_seq
        self.decode_layout = Layout(rows, rows, width)
        largest = Layout(max(config.max_num_batched_tokens, rows), rows, width)
        on_cuda = device.type == "cuda"
        self._staging = torch.zeros(largest.words, dtype=torch.int32, pin_memory=on_cuda)
        self._on_device = torch.zeros(largest.words, dtype=torch.int32, device=device) if on_cuda else self._staging
        self._copied = torch.cuda.Event() if on_cuda else None  # type: ignore[no-untyped-call]
        self.host: Int32Array = self._staging.numpy()
        self._decode_inputs: dict[int, StepInputs] = {}  # by batch size: a decode step's fields never move

    def wait_until_writable(self) -> None:
        """Block until the last copy has read the staging area: overwriting it earlier would corrupt that step."""
        if self._copied is not None:
            self._copied.synchronize()

    def host_field(self, layout: Layout, name: str) -> Int32Array:
        return self.host[layout.ranges[name]]

    def send(self, words: int) -> None:
        """Start the one host-to-device copy of this step."""
        if self._copied is not None:
            self._on_device[:words].copy_(self._staging[:words], non_blocking=True)
            self._copied.record()

    def layout_of(self, header: StepHeader) -> Layout:
        if not header.is_prefill:
            return self.decode_layout
        return Layout(header.num_tokens, header.num_seqs, header.table_width)

    def device_inputs(self, header: StepHeader) -> StepInputs:
        """The device's view of a step."""
        if header.is_prefill:
            return self._view(header)
        if header.num_seqs not in self._decode_inputs:
            self._decode_inputs[header.num_seqs] = self._view(header)
        return self._decode_inputs[header.num_seqs]

    def _view(self, header: StepHeader) -> StepInputs:
        layout, tokens, rows = self.layout_of(header), header.num_tokens, header.num_seqs
        fields = {name: self._on_device[layout.ranges[name]] for name in layout.ranges}
        tables = fields["block_tables"].view(layout.rows, -1)[:rows] if header.table_width else None
        prefill = header.is_prefill
        return StepInputs(
            is_prefill=prefill,
            **{name: fields[name][:tokens] for name in TOKEN_FIELDS},
            context_lens=fields["context_lens"][:rows],
            temperatures=fields["temperatures"].view(torch.float32)[:rows],
            seeds=fields["seeds"][:rows],
            cu_seqlens_q=fields["cu_seqlens_q"] if prefill else None,
            cu_seqlens_k=fields["cu_seqlens_k"] if prefill else None,
            max_seqlen_q=header.max_seqlen_q,
            max_seqlen_k=header.max_seqlen_k,
            block_tables=tables,
        )
