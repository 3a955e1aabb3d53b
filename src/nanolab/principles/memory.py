"""Bytes of the KV cache, and how many requests fit into what the weights leave free.

KiB, MiB and GiB count by 1024; GB counts by 1000, as model files and vendors do.
"""

from dataclasses import dataclass

from .layout import num_blocks
from .shape import QWEN3_0_6B, ModelShape

KIB, MIB, GIB = 1024, 1024**2, 1024**3
GB = 1000**3


def kv_bytes_per_token(shape: ModelShape) -> int:
    """2 (a key and a value) x layers x KV heads x head_dim x bytes. Not Q heads: no query is cached."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * shape.bytes_per_value


def kv_bytes(shape: ModelShape, num_tokens: int) -> int:
    """Bytes of `num_tokens` positions over all layers."""
    return kv_bytes_per_token(shape) * num_tokens


@dataclass(frozen=True)
class Budget:
    """One card's memory, divided. Whole blocks are counted: the unused tail of a last block is included."""

    gpu_bytes: int
    weight_bytes: int
    reserve_bytes: int  # peak work of a step, other users of the card, margin
    shape: ModelShape = QWEN3_0_6B
    block_size: int = 256
    tokens_per_request: int = 4096

    @property
    def kv_bytes(self) -> int:
        """M_KV = M_GPU - weights - reserve."""
        return self.gpu_bytes - self.weight_bytes - self.reserve_bytes

    @property
    def pool_blocks(self) -> int:
        """floor(M_KV / bytes of one block)."""
        return self.kv_bytes // kv_bytes(self.shape, self.block_size)

    @property
    def blocks_per_request(self) -> int:
        return num_blocks(self.tokens_per_request, self.block_size)

    @property
    def requests(self) -> int:
        """floor(pool / blocks per request): how many requests of full length fit at once."""
        return self.pool_blocks // self.blocks_per_request
