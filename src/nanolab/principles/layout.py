"""Where a position's KV lies, and how wide each projection is on one tensor-parallel rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanolab.errors import LabError

from .shape import QWEN3_0_6B, ModelShape


def slot(block_table: Sequence[int], position: int, block_size: int) -> int:
    """block_table[position // B] * B + position % B: logical block to physical block, then the offset."""
    return block_table[position // block_size] * block_size + position % block_size


def num_blocks(num_tokens: int, block_size: int) -> int:
    """ceil(tokens / B): the last block may be partly empty, and is owned whole."""
    return -(-num_tokens // block_size)


@dataclass(frozen=True)
class RankShapes:
    """One rank's share of a layer. Heads and intermediate columns are divided; the hidden size is not.

    Column-parallel weights (qkv, gate_up) divide their output, row-parallel ones (o, down) their input; an
    all-reduce after o and one after down add the ranks' partial sums (Shoeybi et al. 2019, section 3).
    """

    tp: int
    shape: ModelShape = QWEN3_0_6B

    def __post_init__(self) -> None:
        heads = self.shape.num_kv_heads
        possible = [n for n in range(1, heads + 1) if heads % n == 0]
        if self.tp not in possible:
            raise LabError(f"--tp {self.tp}: {heads} KV heads do not divide evenly; use one of {possible}")

    @property
    def q_heads(self) -> int:
        return self.shape.num_q_heads // self.tp

    @property
    def kv_heads(self) -> int:
        return self.shape.num_kv_heads // self.tp

    @property
    def q_width(self) -> int:
        return self.q_heads * self.shape.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.shape.head_dim

    @property
    def qkv_width(self) -> int:
        """Q, K and V come from one matrix product: their rows are packed into one weight."""
        return self.q_width + 2 * self.kv_width

    @property
    def intermediate(self) -> int:
        return self.shape.intermediate_size // self.tp

    @property
    def gate_up_width(self) -> int:
        """The two MLP inputs are packed as well."""
        return 2 * self.intermediate

    def packed_rows(self) -> dict[str, list[int]]:
        """Row range [start, end) of Q, K and V inside this rank's packed qkv weight."""
        q_end, k_end = self.q_width, self.q_width + self.kv_width
        return {"q": [0, q_end], "k": [q_end, k_end], "v": [k_end, self.qkv_width]}

    def activations(self) -> dict[str, list[str | int]]:
        """Shape of every tensor of a layer on this rank. T: all input positions of the round."""
        hidden, head_dim = self.shape.hidden_size, self.shape.head_dim
        return {
            "hidden": ["T", hidden],
            "qkv_proj": ["T", self.qkv_width],
            "q": ["T", self.q_heads, head_dim],
            "k": ["T", self.kv_heads, head_dim],
            "v": ["T", self.kv_heads, head_dim],
            "o_proj": ["T", hidden],
            "gate_up_proj": ["T", self.gate_up_width],
            "down_proj": ["T", hidden],
        }
