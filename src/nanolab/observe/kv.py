"""What a step did to the KV pool: the K and V it wrote, and that it wrote nothing else.

The pool is [2, layers, blocks, block_size, kv_heads, head_dim] (K, then V). Blocks that receive new K and V, and the
valid positions of live sequences, are compared bit by bit; all other blocks by a sum over their bits, so that the
check also fits a pool that fills the card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nanolab.sources import EngineDriver


@dataclass(frozen=True)
class KVCheck:
    history_unchanged: bool  # positions that were valid before the step
    others_unchanged: bool  # everything else that the step had no business to write


class KVProbe:
    def __init__(self, driver: EngineDriver) -> None:
        self.block_size = driver.block_size
        self.cache: Any = driver.engine.model_runner.kv_cache
        self.slots: Any = self.cache.flatten(2, 3)  # [2, layers, slots, kv_heads, head_dim], the same memory

    def before(self, history: list[int], new: list[int]) -> None:
        """Remember the pool before a step that may read `history` and must write only `new` (slots)."""
        self._history, self._new = self._index(history), self._index(new)
        self._written_blocks = self._index(sorted({slot // self.block_size for slot in new}))
        self._kept = self.slots[:, :, self._history].clone()
        self._around = self.cache[:, :, self._written_blocks].clone()
        self._sums = self._block_sums()

    def after(self) -> KVCheck:
        """Compare the pool with what `before` remembered."""
        import torch

        history = torch.equal(self._bits(self.slots[:, :, self._history]), self._bits(self._kept))
        now = self.cache[:, :, self._written_blocks].clone()
        for pool in (now, self._around):  # the new slots may differ, their neighbours may not
            flat = pool.flatten(2, 3)
            flat[:, :, self._places_of_new()] = 0
        around = torch.equal(self._bits(now), self._bits(self._around))
        sums = self._block_sums()
        elsewhere = torch.ones(sums.shape[-1], dtype=torch.bool, device=sums.device)
        elsewhere[self._written_blocks] = False
        far = torch.equal(sums[..., elsewhere], self._sums[..., elsewhere])
        return KVCheck(history, around and far)

    def new_kv(self, slots: list[int]) -> npt.NDArray[np.float32]:
        """[len(slots), layers, 2, kv_heads, head_dim]: what those slots hold now."""
        seen = self.slots[:, :, self._index(slots)].float().cpu().numpy()
        return np.ascontiguousarray(seen.transpose(2, 1, 0, 3, 4))

    def _index(self, values: list[int]) -> Any:
        import torch

        return torch.tensor(values, dtype=torch.long, device=self.cache.device)

    def _places_of_new(self) -> Any:
        """Where the new slots lie within the copied blocks."""
        import torch

        rank = torch.searchsorted(self._written_blocks, self._new // self.block_size)
        return rank * self.block_size + self._new % self.block_size

    def _bits(self, values: Any) -> Any:
        """The values as integers: -0.0 and 0.0 differ, a NaN equals itself."""
        import torch

        return values.contiguous().view({2: torch.int16, 4: torch.int32}[values.element_size()])

    def _block_sums(self) -> Any:
        """[2 * layers, blocks] int64; a layer at a time, because widening a pool that fills the card would not fit."""
        import torch

        layers = self.cache.flatten(0, 1)
        return torch.stack([self._bits(layer).flatten(1).sum(-1, dtype=torch.int64) for layer in layers])
