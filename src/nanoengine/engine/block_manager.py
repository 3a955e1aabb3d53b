"""Who owns which block of the KV pool, and which full blocks can be shared as a common prefix.

A block's hash covers its own token ids and, through the previous block's hash, everything before it, so equal
hashes mean equal prefixes; token ids are compared as well, because hashes can collide. A freed block keeps its
hash and content until somebody else needs the memory: a later request may still find it.
"""

from collections import deque

import numpy as np
import xxhash

from .sequence import Sequence

NO_HASH = -1


class Block:
    """One page of the pool: `block_size` token positions of every layer."""

    __slots__ = ("block_id", "hash", "ref_count", "token_ids")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.hash = NO_HASH
        self.token_ids: list[int] = []


def hash_block(previous: int, token_ids: list[int]) -> int:
    """xxhash64 of the previous block's hash and this block's ids; `NO_HASH` starts a chain."""
    digest = xxhash.xxh64()
    if previous != NO_HASH:
        digest.update(previous.to_bytes(8, "little"))
    digest.update(np.asarray(token_ids, dtype=np.int64).tobytes())
    return digest.intdigest()


class BlockManager:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.free_block_ids = deque(range(num_blocks))
        self.used_block_ids: set[int] = set()
        self.hash_to_block_id: dict[int, int] = {}

    # ---- a whole prompt ----------------------------------------------------------------------------------

    def cached_prefix(self, seq: Sequence) -> list[int]:
        """Ids of the blocks that already hold the longest full-block prefix of `seq`.

        The last block is never matched: at least one position must be computed to produce logits.
        """
        found: list[int] = []
        block_hash = NO_HASH
        for index in range(seq.num_blocks - 1):
            token_ids = seq.block(index)
            block_hash = hash_block(block_hash, token_ids)
            block_id = self.hash_to_block_id.get(block_hash)
            if block_id is None or self.blocks[block_id].token_ids != token_ids:
                break
            found.append(block_id)
        return found

    def can_allocate(self, seq: Sequence) -> int:
        """Number of cached prefix blocks if the whole of `seq` fits now, else -1. Changes nothing."""
        cached = self.cached_prefix(seq)
        shared_in_use = sum(block_id in self.used_block_ids for block_id in cached)
        needed = seq.num_blocks - shared_in_use
        return len(cached) if needed <= len(self.free_block_ids) else -1

    def allocate(self, seq: Sequence, num_cached_blocks: int) -> None:
        """Give `seq` a block for every logical block, the first `num_cached_blocks` from the prefix cache."""
        for block_id in self.cached_prefix(seq)[:num_cached_blocks]:
            block = self.blocks[block_id]
            if block.ref_count == 0:
                self.free_block_ids.remove(block_id)
                self.used_block_ids.add(block_id)
            block.ref_count += 1
            seq.block_table.append(block_id)
        while len(seq.block_table) < seq.num_blocks:
            seq.block_table.append(self._take_free_block())
        seq.num_cached_tokens = num_cached_blocks * self.block_size

    def deallocate(self, seq: Sequence) -> None:
        """Drop `seq`'s references, last block first; content and hashes stay until reallocation."""
        for block_id in reversed(seq.block_table):
            block = self.blocks[block_id]
            block.ref_count -= 1
            if block.ref_count == 0:
                self.used_block_ids.remove(block_id)
                self.free_block_ids.append(block_id)
        seq.block_table.clear()
        seq.num_cached_tokens = 0

    # ---- one more token ----------------------------------------------------------------------------------

    def can_append(self, seq: Sequence) -> bool:
        """Whether this step's position has a block, or a free one exists for it."""
        return bool(self.free_block_ids) or (seq.num_tokens - 1) % self.block_size != 0

    def may_append(self, seq: Sequence) -> None:
        """Take a block when the newest known token is the first of a new one (total % block_size == 1)."""
        if (seq.num_tokens - 1) % self.block_size == 0:  # written so that it holds for blocks of one token too
            seq.block_table.append(self._take_free_block())

    # ---- sharing -----------------------------------------------------------------------------------------

    def hash_blocks(self, seq: Sequence) -> None:
        """Register the blocks that this step's tokens have just filled; call before `cached` advances."""
        first = seq.num_cached_tokens // self.block_size
        end = (seq.num_cached_tokens + seq.num_scheduled_tokens) // self.block_size
        if first == end:
            return
        block_hash = self.blocks[seq.block_table[first - 1]].hash if first else NO_HASH
        for index in range(first, end):
            block = self.blocks[seq.block_table[index]]
            block.token_ids = seq.block(index)
            block.hash = block_hash = hash_block(block_hash, block.token_ids)
            self.hash_to_block_id[block_hash] = block.block_id

    def _take_free_block(self) -> int:
        """Take the block that has been free longest, and forget what it held."""
        block_id = self.free_block_ids.popleft()
        block = self.blocks[block_id]
        if self.hash_to_block_id.get(block.hash) == block_id:
            del self.hash_to_block_id[block.hash]
        block.hash, block.token_ids, block.ref_count = NO_HASH, [], 1
        self.used_block_ids.add(block_id)
        return block_id
