"""Synthetic weights: the same bytes on every machine, and logits that spread like a trained model's.

Determinism. A tensor's values come from numpy's Philox counter generator keyed with (seed, hash of the
tensor's name). Only its raw 64-bit words are used, whose sequence numpy guarantees; a word becomes one value
by adding its four 16-bit quarters (close to a normal, never past 3.47 deviations). Integer sums, float32
products, one rounding: no library function whose last bit differs between CPUs, and tensors can be made in
any order.

Scale. With plain random weights all logits are alike and rounding decides top-1, so that comparing top-1
proves nothing; and errors grow from layer to layer until bfloat16 says nothing either. Here:

* the variance that all attention branches, and all MLP branches, add to the residual stream is fixed
  (ATTENTION_SHARE, MLP_SHARE, relative to the embedding) whatever the depth: what the last position computes
  depends on the whole context, and a wrong key or value shows in the logits;
* each layer writes to one in WRITERS of the stream's coordinates (faintly to the others), so that a
  coordinate is rounded by a quarter of the additions;
* the last MLP is a key-value memory (Geva et al., 2021): gate and up rows agree, so a neuron answers with the
  square of its match, and its value is the embedding row of one token. Few neurons win clearly, as in a
  trained model, and top-1 stands apart from the rest. A neuron is held back (INHIBITION, in deviations of its
  match) by the very token that it proposes: greedy decoding does not repeat one token for ever;
* embedding rows have deviation EMBED; marker and padding rows a fraction of it, so they are seldom the top-1;
* the final norm is scaled to give logits a deviation of LOGITS.

Aimed for, and measured with these constants (28 layers): top-1 probability 0.5 to 0.6 on average, bfloat16
within 1.2 % of float32 (relative L2 of the logits), the same top-1 in 98 % of the positions.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .shapes import ModelShape

EMBED = 0.03
MARKER_ROWS = 0.3
ATTENTION_SHARE = 4.0
MLP_SHARE = 1.0
WRITERS = 4
FAINT = 2.0**-10  # below the rounding step of the stream, yet not zero
NORM_SPREAD = 0.1  # norm weights differ from one another, so that code which forgets them is caught
SWIGLU = 0.6  # deviation of silu(x) * y for standard normal x, y (sqrt of E[silu(x)^2] = 0.596)
MEMORY_GATE = 3.0  # steep enough for silu to act as max(0, x)
MEMORY_SHARE = 2.5  # the memory's output relative to the residual stream that it joins
INHIBITION = 3.0
LOGITS = 2.5
STREAM = math.sqrt(1 + ATTENTION_SHARE + MLP_SHARE)  # deviation of the residual stream, in embeddings

_CHUNK = 1 << 18  # words handled at a time: stays inside the cache
_LANES = np.uint64(0x0000_FFFF_0000_FFFF)
_MEAN = np.float32(4 * 65535 / 2)
_DEVIATION = math.sqrt(4 * (65536**2 - 1) / 12)

Values = NDArray[np.float32]


def standard_values(seed: int, name: str, count: int, offset: float = 0.0, scale: float = 1.0) -> Values:
    """`count` values of mean `offset` and deviation `scale`, a pure function of (seed, name)."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    generator = np.random.Philox(key=np.array([seed, key], dtype=np.uint64))
    out = np.empty(count, dtype=np.float32)
    factor = np.float32(scale / _DEVIATION)
    for start in range(0, count, _CHUNK):
        part = out[start : start + _CHUNK]
        words = np.asarray(generator.random_raw(part.size), dtype=np.uint64)
        pairs = (words & _LANES) + ((words >> np.uint64(16)) & _LANES)
        part[:] = (pairs + (pairs >> np.uint64(32))).astype(np.uint32)
        part -= _MEAN
        part *= factor
        part += np.float32(offset)
    return out


def to_bfloat16(values: Values) -> NDArray[np.uint16]:
    """The bfloat16 bit patterns of finite values, rounded to nearest even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    out = np.empty(bits.shape, dtype=np.uint16)
    flat, rounded = bits.reshape(-1), out.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        rounded[start : start + _CHUNK] = (part + (((part >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return out


@dataclass(frozen=True)
class Tensor:
    """One tensor of the checkpoint; `make` computes it when its turn to be written comes."""

    name: str
    shape: tuple[int, ...]
    make: Callable[[], Values]

    @property
    def count(self) -> int:
        return math.prod(self.shape)


class SyntheticWeights:
    """The tensors of `shape` for one seed, under the names of a Qwen3 checkpoint."""

    def __init__(self, shape: ModelShape, seed: int) -> None:
        self.shape = shape
        self.seed = seed

    def tensors(self) -> Iterator[Tensor]:
        s = self.shape
        yield Tensor("model.embed_tokens.weight", (s.vocab_size, s.hidden_size), self._embedding)
        for layer in range(s.num_hidden_layers):
            yield from self._layer(layer)
        gain = LOGITS / (EMBED * math.sqrt(s.hidden_size))
        yield self._norm("model.norm.weight", s.hidden_size, gain)
        if s.stored_head or not s.tie_word_embeddings:
            yield Tensor("lm_head.weight", (s.vocab_size, s.hidden_size), self._head)

    def _layer(self, layer: int) -> Iterator[Tensor]:
        s, prefix = self.shape, f"model.layers.{layer}."
        attention, width = prefix + "self_attn.", 1 / math.sqrt(s.hidden_size)
        yield self._norm(prefix + "input_layernorm.weight", s.hidden_size, 1.0)
        yield self._matrix(attention + "q_proj.weight", s.q_size, s.hidden_size, width)
        yield self._matrix(attention + "k_proj.weight", s.kv_size, s.hidden_size, width)
        yield self._matrix(attention + "v_proj.weight", s.kv_size, s.hidden_size, width)
        yield self._norm(attention + "q_norm.weight", s.head_dim, 1.0)
        yield self._norm(attention + "k_norm.weight", s.head_dim, 1.0)
        yield self._writer(attention + "o_proj.weight", layer, s.q_size, ATTENTION_SHARE)
        yield self._norm(prefix + "post_attention_layernorm.weight", s.hidden_size, 1.0)
        yield from self._memory(prefix) if layer == s.num_hidden_layers - 1 else self._mlp(prefix, layer)

    def _mlp(self, prefix: str, layer: int) -> Iterator[Tensor]:
        s, width = self.shape, 1 / math.sqrt(self.shape.hidden_size)
        yield self._matrix(prefix + "mlp.gate_proj.weight", s.intermediate_size, s.hidden_size, width)
        yield self._matrix(prefix + "mlp.up_proj.weight", s.intermediate_size, s.hidden_size, width)
        down = prefix + "mlp.down_proj.weight"
        yield self._writer(down, layer, s.intermediate_size, MLP_SHARE / SWIGLU**2)

    def _writer(self, name: str, layer: int, columns: int, share: float) -> Tensor:
        """A projection back into the stream; `share` is the variance that all layers' together add."""
        s = self.shape
        scale = EMBED * math.sqrt(share / (s.num_hidden_layers * columns))
        strength = np.full((s.hidden_size, 1), FAINT, dtype=np.float32)
        strength[layer % WRITERS :: WRITERS] = math.sqrt(WRITERS)
        whole = self._matrix(name, s.hidden_size, columns, scale)
        return Tensor(name, whole.shape, lambda: whole.make() * strength)

    def _memory(self, prefix: str) -> Iterator[Tensor]:
        gate, up, down = (f"{prefix}mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
        keys = (self.shape.intermediate_size, self.shape.hidden_size)
        own = 0.25 / math.sqrt(self.shape.hidden_size)  # up differs a little: a swap of the two shows

        def up_rows() -> Values:
            return self._draw(up, math.prod(keys), scale=own).reshape(keys) + self._memory_keys(gate)

        yield Tensor(gate, keys, lambda: self._memory_keys(gate) * np.float32(MEMORY_GATE))
        yield Tensor(up, keys, up_rows)
        yield Tensor(down, keys[::-1], self._memory_values)

    def _memory_keys(self, name: str) -> Values:
        """Row j is what neuron j matches: a random direction, minus the token that it would repeat."""
        s = self.shape
        keys = self._draw(name, s.intermediate_size * s.hidden_size, scale=1 / math.sqrt(s.hidden_size))
        # The stream holds its own token's row at 1 / STREAM of its deviation.
        against = np.float32(INHIBITION * STREAM / (EMBED * s.hidden_size))
        return keys.reshape(s.intermediate_size, s.hidden_size) - against * self._memory_inputs

    def _memory_values(self) -> Values:
        """Column j is the (output) embedding row of the token that neuron j proposes."""
        # A neuron's answer is about 3 * max(0, z)^2, whose second moment is 9 * 3 / 2.
        answers = math.sqrt(self.shape.intermediate_size * MEMORY_GATE**2 * 1.5)
        return np.ascontiguousarray(self._memory_outputs.T) * np.float32(MEMORY_SHARE * STREAM / answers)

    @cached_property
    def _memory_inputs(self) -> Values:
        return self._embedding()[self.memory_tokens()]

    @cached_property
    def _memory_outputs(self) -> Values:
        return self._memory_inputs if self.shape.tie_word_embeddings else self._head()[self.memory_tokens()]

    def memory_tokens(self) -> NDArray[np.int64]:
        """The token of each neuron of the last MLP; neuron 0 proposes the end of the turn."""
        low, high = self.shape.memory_ids
        ids = low + np.argsort(self._draw("memory order", high - low), kind="stable")
        tokens = np.resize(ids, self.shape.intermediate_size).astype(np.int64)
        tokens[0] = self.shape.eos_token_ids[0]
        return tokens

    def _embedding(self) -> Values:
        return self._rows("model.embed_tokens.weight")

    def _head(self) -> Values:
        return self._rows("model.embed_tokens.weight" if self.shape.tie_word_embeddings else "lm_head.weight")

    def _rows(self, name: str) -> Values:
        s = self.shape
        rows = self._draw(name, s.vocab_size * s.hidden_size, scale=EMBED).reshape(-1, s.hidden_size)
        quiet = np.ones(s.vocab_size, dtype=bool)
        quiet[: s.regular_ids] = False
        quiet[s.eos_token_ids[0]] = False
        rows[quiet] *= np.float32(MARKER_ROWS)
        return rows

    def _norm(self, name: str, size: int, gain: float) -> Tensor:
        return Tensor(name, (size,), lambda: self._draw(name, size, gain, NORM_SPREAD * gain))

    def _matrix(self, name: str, rows: int, columns: int, scale: float) -> Tensor:
        count = rows * columns
        return Tensor(name, (rows, columns), lambda: self._draw(name, count, scale=scale).reshape(rows, columns))

    def _draw(self, name: str, count: int, offset: float = 0.0, scale: float = 1.0) -> Values:
        return standard_values(self.seed, name, count, offset, scale)


def encode(values: Values, dtype: str) -> NDArray[Any]:
    """What is written to disk: float32 as it is, bfloat16 as its bit patterns."""
    return to_bfloat16(values) if dtype == "bfloat16" else np.ascontiguousarray(values)
