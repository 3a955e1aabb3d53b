"""Every kernel against its plain torch meaning on a GPU, at the shapes of Qwen3-0.6B in bfloat16.

The interpreter tests beside this file cover the edges with small shapes; here are the sizes that run, with the
launch options that run. `scripts/maintain/bench_kernels.py` calls `check_all` before it times anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from kernel_cases import paged_cache, rotary_cache

from nanoengine.layers import kernels, random
from nanoengine.layers.kernels import reference

HEADS, KV_HEADS, DIM, HIDDEN, INNER, LAYERS, VOCABULARY = 16, 8, 128, 1024, 3072, 28, 151936
PAGE, EPS, SCALE, BF16, DEVICE = 256, 1e-6, DIM**-0.5, torch.bfloat16, "cuda"
QKV = (HEADS + 2 * KV_HEADS) * DIM
LINEARS = {"qkv": (QKV, HIDDEN), "o": (HIDDEN, HEADS * DIM), "gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}


class Checker(Protocol):
    """Takes a name and a call that returns (kernel's tensor, reference)."""

    def check(self, name: str, make: Callable[[], tuple[Any, Any]], limit: float = 1e-2) -> None: ...


def norm_weights(width: int) -> torch.Tensor:
    return (1 + 0.1 * torch.randn(width, device=DEVICE)).to(BF16)


def rand(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (scale * torch.randn(*shape, device=DEVICE)).to(BF16)


def workspace(batch: int, **sizes: int) -> kernels.DecodeWorkspace:
    tunables = kernels.DecodeTunables(**sizes)
    return kernels.DecodeWorkspace.allocate(batch, HEADS, KV_HEADS, DIM, torch.device(DEVICE), tunables)


def step_tensors(lengths: list[int], page: int) -> tuple[torch.Tensor, ...]:
    """k_cache, v_cache, tables, context_lens, positions and slots of a decode step at these lengths."""
    k, v, tables = paged_cache(lengths, page, KV_HEADS, DIM, BF16, seed=page, device=DEVICE)
    table = tables.tolist()
    slots = [table[r][(n - 1) // page] * page + (n - 1) % page if n else -1 for r, n in enumerate(lengths)]
    lens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    return k, v, tables, lens, (lens - 1).clamp(min=0), torch.tensor(slots, dtype=torch.int32, device=DEVICE)


def check_attention(bench: Checker) -> None:
    for page, lengths in [(256, [1, 0, 255, 256, 257, 1100]), (16, [17, 0, 33, 900]), (48, [47, 48, 500])]:
        k, v, tables, lens, positions, slots = step_tensors(lengths, page)
        n = len(lengths)
        q, qkv, w = rand(n, HEADS, DIM), rand(n, QKV), [norm_weights(DIM), norm_weights(DIM)]
        wanted = reference.paged_decode_attention(q, k, v, tables, lens, SCALE)
        for splits in (1, 4, 16):
            scratch = workspace(n, min_splits=splits, max_splits=splits)
            args = (q, k, v, tables, lens, SCALE, scratch)
            bench.check(
                f"paged_decode_attention, page {page}, {splits} splits",
                lambda args=args, wanted=wanted: (kernels.paged_decode_attention(*args, pdl=True), wanted),
            )

        angles = rotary_cache(4096, DIM).to(DEVICE)
        scratch = workspace(n)
        expected = reference.qk_norm_rope(qkv, *w, EPS, angles, positions, HEADS, KV_HEADS, DIM)
        k_after, v_after = k.clone(), v.clone()
        reference.store_kv(expected[1], expected[2], k_after, v_after, slots)
        fused_wanted = reference.paged_decode_attention(expected[0], k_after, v_after, tables, lens, SCALE)
        args = (qkv, *w, EPS, angles, positions, slots, k, v, tables, lens, SCALE, HEADS, scratch)

        def fused(args: Any = args, scratch: Any = scratch, lens: Any = lens, wanted: Any = fused_wanted) -> Any:
            out = kernels.rope_store_attend(*args, pdl=True)
            return kernels.merge_splits(scratch, lens, out, KV_HEADS, pdl=True), wanted

        bench.check(f"rope_store_attend, page {page}", fused)
        bench.check(f"its stores, page {page}", lambda k=k, wanted=k_after: (k.nan_to_num(), wanted.nan_to_num()))

        queries = [min(length, 150) for length in lengths if length]
        kept = [row for row, length in enumerate(lengths) if length]
        cu_q = torch.tensor([0, *queries]).cumsum(0).to(DEVICE, torch.int32)
        cu_k = torch.tensor([0, *[lengths[row] for row in kept]]).cumsum(0).to(DEVICE, torch.int32)
        q, longest = rand(sum(queries), HEADS, DIM), max(queries)
        prefill = (q, k, v, cu_q, cu_k, tables[kept].contiguous())
        bench.check(
            f"paged_prefill_attention, page {page}",
            lambda prefill=prefill, top=longest: (
                kernels.paged_prefill_attention(*prefill, top, SCALE),
                reference.paged_prefill_attention(*prefill, SCALE),
            ),
        )
    bounds = torch.tensor([0, 1, 300, 400, 912], device=DEVICE, dtype=torch.int32)
    heads = rand(912, HEADS + 2 * KV_HEADS, DIM).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    bench.check(
        "prefill_attention",
        lambda: (
            kernels.prefill_attention(*heads, bounds, 512, SCALE),
            reference.prefill_attention(*heads, bounds, SCALE),
        ),
    )


def check_elementwise(bench: Checker) -> None:
    x, residual, w, gate_up = rand(33, HIDDEN), rand(33, HIDDEN), norm_weights(HIDDEN), rand(33, 2 * INNER)
    bench.check(
        "add_rms_norm",
        lambda: (kernels.add_rms_norm(x, residual, w, EPS)[0], reference.add_rms_norm(x, residual, w, EPS)[0]),
    )
    bench.check("silu_and_mul", lambda: (kernels.silu_and_mul(gate_up), reference.silu_and_mul(gate_up)))
    qkv, weights = rand(33, QKV), (norm_weights(DIM), norm_weights(DIM))
    positions, angles = torch.arange(33, device=DEVICE) * 100, rotary_cache(4096, DIM).to(DEVICE)
    slots = torch.arange(33, device=DEVICE, dtype=torch.int32) * 3 - 3
    slots[0] = -1
    caches = [torch.zeros(1, PAGE, KV_HEADS, DIM, dtype=BF16, device=DEVICE) for _ in range(2)]
    wanted = reference.qk_norm_rope(qkv, *weights, EPS, angles, positions, HEADS, KV_HEADS, DIM)
    args = (qkv, *weights, EPS, angles, positions, slots, *caches, HEADS, KV_HEADS, DIM)
    bench.check("qk_norm_rope_store, q", lambda: (kernels.qk_norm_rope_store(*args)[0], wanted[0]))
    bench.check("qk_norm_rope_store, cache", lambda: (caches[0][0, slots[1:].long()], wanted[1][1:]))
    k, v = rand(33, KV_HEADS, DIM), rand(33, KV_HEADS, DIM)
    kernels.store_kv(k, v, *caches, slots)
    bench.check("store_kv", lambda: (caches[1][0, slots[1:].long()], v[1:]))
    logits = rand(8, VOCABULARY, scale=4.0)
    temperatures = torch.tensor([0.0, 0.6, 1.0, 1.5] * 2, device=DEVICE)
    seeds = torch.arange(8, device=DEVICE) + 2**40
    bench.check(
        "sample (share of different ids)",
        lambda: (
            (
                kernels.sample(logits, temperatures, seeds, seeds % 97)
                != random.sample_gumbel(logits, temperatures, seeds, seeds % 97)
            )
            .float()
            .mean()[None]
            + 1,
            torch.ones(1, device=DEVICE),
        ),
    )


def check_linear(bench: Checker) -> None:
    for n in (1, 2, 3, 4, 5, 16):
        for name, (outputs, width) in LINEARS.items():
            x, w, norm = rand(n, width), rand(outputs, width, scale=width**-0.5), norm_weights(width)
            residual = rand(n, outputs)
            wanted = reference.linear(x, w)
            if name == "gate_up":
                act = reference.silu_and_mul(wanted)
                bench.check(f"gate_up_silu, n={n}", lambda x=x, w=w, act=act: (kernels.gate_up_silu(x, w), act))
            else:
                bench.check(
                    f"linear {name} + residual, n={n}",
                    lambda x=x, w=w, r=residual, y=wanted: (kernels.linear(x, w, r, pdl=True), y + r),
                )
            if n == 1 and width == HIDDEN:
                normed = reference.linear(reference.rms_norm(x, norm, EPS), w)
                call, y = (
                    (kernels.norm_gate_up_silu, reference.silu_and_mul(normed))
                    if name == "gate_up"
                    else (kernels.norm_linear, normed)
                )
                bench.check(
                    f"{call.__name__} {name}, n={n}",
                    lambda call=call, x=x, norm=norm, w=w, y=y: (call(x, norm, EPS, w, pdl=True), y),
                )


def check_split_linear(bench: Checker) -> None:
    norm = norm_weights(HIDDEN)
    for n in (17, 64, 100, 256):
        for name in ("o", "down"):
            outputs, width = LINEARS[name]
            x, w, residual = rand(n, width), rand(outputs, width, scale=width**-0.5), rand(n, outputs)
            wanted = reference.add_rms_norm(reference.linear(x, w), residual, norm, EPS)[0]
            bench.check(
                f"split_linear {name}, residual and norm, n={n}",
                lambda x=x, w=w, r=residual, y=wanted: (
                    kernels.add_rms_norm(kernels.split_linear(x, w, pdl=True), r, norm, EPS, pdl=True)[0],
                    y,
                ),
            )


def check_all(bench: Checker) -> None:
    check_attention(bench)
    check_elementwise(bench)
    check_linear(bench)
    check_split_linear(bench)
