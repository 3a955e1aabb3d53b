"""What one forward pass reads besides weights and the KV cache.

The object is passed down the model explicitly; nothing is kept in a module-level variable, so two engines in one
process cannot disturb each other.
"""

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class StepInputs:
    """One step's inputs, as int32 tensors on the engine's device.

    T input positions of N sequences; in a decode step T == N. A padded decode row has slot -1 and context length 0:
    it writes no KV and reads none.
    """

    is_prefill: bool
    input_ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T] position of each input within its own sequence
    slot_mapping: torch.Tensor  # [T] where its K and V go: block * block_size + offset
    context_lens: torch.Tensor  # [N] keys each sequence can see, counting the ones being written
    temperatures: torch.Tensor  # [N] float32, 0 = greedy
    seeds: torch.Tensor  # [N]
    cu_seqlens_q: torch.Tensor | None = None  # [N + 1] prefill: boundaries of the concatenated queries
    cu_seqlens_k: torch.Tensor | None = None  # [N + 1] prefill: boundaries of the keys, history included
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    block_tables: torch.Tensor | None = None  # [N, W]; None: a prefill without history reads no cache

    @property
    def num_seqs(self) -> int:
        return self.context_lens.shape[0]

    @property
    def last_rows(self) -> torch.Tensor:
        """[N] the row whose logits choose each sequence's next token."""
        assert self.cu_seqlens_q is not None
        return self.cu_seqlens_q[1:] - 1
