"""A decode step of Qwen3-0.6B's shape, built from the kernels on random weights: what the engine's hot path costs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from kernel_cases import rotary_cache
from shape_checks import (
    BF16,
    DEVICE,
    DIM,
    EPS,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    LINEARS,
    PAGE,
    SCALE,
    VOCABULARY,
    norm_weights,
    rand,
)

from nanoengine.layers import kernels

Stream = tuple[torch.Tensor, torch.Tensor | None]  # the first plus the second


class Model:
    """Random weights of Qwen3-0.6B's shape and caches filled to a context length: a decode step, layer by layer."""

    def __init__(self, n: int, context: int) -> None:
        self.n = n
        self.weights = [
            {name: rand(*shape, scale=shape[1] ** -0.5) for name, shape in LINEARS.items()}
            | {"norm_1": norm_weights(HIDDEN), "norm_2": norm_weights(HIDDEN)}
            | {"q_norm": norm_weights(DIM), "k_norm": norm_weights(DIM)}
            for _ in range(LAYERS)
        ]
        self.final_norm, self.head = norm_weights(HIDDEN), rand(VOCABULARY, HIDDEN, scale=HIDDEN**-0.5)
        pages = -(-context // PAGE)
        self.cache = torch.randn(2, LAYERS, n * pages, PAGE, KV_HEADS, DIM, dtype=BF16, device=DEVICE)
        self.tables = torch.randperm(n * pages).to(DEVICE, torch.int32).view(n, pages)
        self.lens = torch.full((n,), context, dtype=torch.int32, device=DEVICE)
        self.positions = self.lens - 1
        self.slots = self.tables[:, -1] * PAGE + (context - 1) % PAGE
        self.angles = rotary_cache(4096, DIM).to(DEVICE)
        self.temperatures, self.seeds = torch.ones(n, device=DEVICE), torch.arange(n, device=DEVICE)
        self.x = rand(n, HIDDEN)
        weight_bytes = sum(w.nbytes for layer in self.weights for w in layer.values()) + self.head.nbytes
        self.floor_bytes = weight_bytes + n * context * LAYERS * KV_HEADS * DIM * 2 * 2

    def attend(
        self, qkv: torch.Tensor, index: int, scratch: kernels.DecodeWorkspace, pdl: bool, in_parts: bool = False
    ) -> torch.Tensor:
        """[n, HEADS * DIM]: norms, rotation, store and attention in one launch and a merge, or launch by launch."""
        layer, k_cache, v_cache = self.weights[index], self.cache[0, index], self.cache[1, index]
        norms = (layer["q_norm"], layer["k_norm"], EPS, self.angles, self.positions, self.slots, k_cache, v_cache)
        if in_parts:
            q, _, _ = kernels.qk_norm_rope_store(qkv, *norms, HEADS, KV_HEADS, DIM, keep_k=False, pdl=pdl)
            out = kernels.paged_decode_attention(
                q, k_cache, v_cache, self.tables, self.lens, SCALE, scratch, pdl=pdl
            )  # fmt: skip
            return out.flatten(1)
        out = kernels.rope_store_attend(qkv, *norms, self.tables, self.lens, SCALE, HEADS, scratch, pdl=pdl)
        return kernels.merge_splits(scratch, self.lens, out, KV_HEADS, pdl=pdl).flatten(1)

    def one_row(self, scratch: kernels.DecodeWorkspace, pdl: bool) -> torch.Tensor:
        """Six launches a layer: the norms are prologues of the products that follow them."""
        x = self.x
        for index, layer in enumerate(self.weights):
            qkv = kernels.norm_linear(x, layer["norm_1"], EPS, layer["qkv"], pdl=pdl)
            out = self.attend(qkv, index, scratch, pdl)
            x = kernels.linear(out, layer["o"], x, pdl=pdl)
            act = kernels.norm_gate_up_silu(x, layer["norm_2"], EPS, layer["gate_up"], pdl=pdl)
            x = kernels.linear(act, layer["down"], x, pdl=pdl)
        return kernels.norm_linear(x, self.final_norm, EPS, self.head, pdl=pdl)

    def rows(self, scratch: kernels.DecodeWorkspace, pdl: bool, products: str, in_parts: bool = False) -> torch.Tensor:
        """Norms and products apart; the layers' products here ("skinny"), in cuBLAS, or in cuBLAS but for those with
        few outputs ("pieces"); the head in cuBLAS."""
        skinny = products == "skinny"

        def to_residual(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> Stream:
            if skinny:
                return kernels.linear(x, weight, residual, pdl=pdl), None
            return kernels.split_linear(x, weight, pdl=pdl) if products == "pieces" else F.linear(x, weight), residual

        stream: Stream = self.x, None
        for index, layer in enumerate(self.weights):
            normed, residual = kernels.add_rms_norm(*stream, layer["norm_1"], EPS, pdl=pdl)
            qkv = kernels.linear(normed, layer["qkv"], pdl=pdl) if skinny else F.linear(normed, layer["qkv"])
            out = self.attend(qkv, index, scratch, pdl, in_parts)
            stream = to_residual(out, layer["o"], residual)
            normed, residual = kernels.add_rms_norm(*stream, layer["norm_2"], EPS, pdl=pdl)
            if skinny:
                act = kernels.gate_up_silu(normed, layer["gate_up"], pdl=pdl)
            else:
                act = kernels.silu_and_mul(F.linear(normed, layer["gate_up"]), pdl=pdl)
            stream = to_residual(act, layer["down"], residual)
        normed, _ = kernels.add_rms_norm(*stream, self.final_norm, EPS, pdl=pdl)
        return F.linear(normed, self.head)

    def sample(self, logits: torch.Tensor, pdl: bool) -> torch.Tensor:
        return kernels.sample(logits, self.temperatures, self.seeds, self.positions, pdl=pdl)
