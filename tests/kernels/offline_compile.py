"""Compile the kernels for real GPUs on a machine that has none: `python tests/kernels/offline_compile.py 90`.

Triton carries its own ptxas, so everything up to machine code works without a driver. A stand-in driver names the
target, every launch stops after compilation, and one JSON line a kernel says what the GPU would need: registers,
spilled bytes, shared memory. Run it in its own process, without the interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SASS_DIRECTORY = os.environ.get("KERNEL_SASS_DIR")  # where to leave disassembly, for reading


class CompileOnlyDriver:
    """Just enough of a driver for `JITFunction.run` to compile for `capability`."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def resources(kernel: Any) -> dict[str, Any]:
    """Registers, spills and shared memory of a compiled kernel."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as directory:
        cubin = Path(directory) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        usage = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin)], capture_output=True, text=True, check=True
        ).stdout
        if SASS_DIRECTORY:
            sass = subprocess.run(
                [knobs.nvidia.cuobjdump.path, "-sass", str(cubin)], capture_output=True, text=True, check=True
            ).stdout
            Path(SASS_DIRECTORY, f"{kernel.name}.{kernel.hash[:8]}.sass").write_text(sass)
            Path(SASS_DIRECTORY, f"{kernel.name}.{kernel.hash[:8]}.ttgir").write_text(kernel.asm["ttgir"])
    numbers = dict(part.split(":") for part in usage.split("\n")[-2].split() if ":" in part and "[" not in part)
    return {
        "kernel": kernel.name,
        "registers": int(numbers["REG"]),
        "spill_bytes": int(numbers["STACK"]) + int(numbers["LOCAL"]),
        "shared_bytes": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
        "hash": kernel.hash[:8],
    }


def install(capability: int) -> list[dict[str, Any]]:
    """Make every launch compile for `capability` and append its resources to the returned list."""
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    from nanoengine.layers.kernels import common

    common.supports_pdl = lambda device: capability >= 90  # the tensors lie on the CPU
    driver.set_active(CompileOnlyDriver(capability))
    compiled: list[dict[str, Any]] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled.append({**resources(kernel), "grid": list(grid)})
        return kernel

    JITFunction.run = compile_only
    return compiled


def cases() -> dict[str, Callable[[], object]]:
    """One call a kernel at Qwen3-0.6B's shapes in bfloat16; tensors are never read, so they are left empty."""
    from nanoengine.layers import kernels

    bf16, n, heads, kv_heads, dim, hidden, inner = torch.bfloat16, 1, 16, 8, 128, 1024, 3072
    qkv = torch.empty(n, (heads + 2 * kv_heads) * dim, dtype=bf16)
    q, k, v = (torch.empty(n, count, dim, dtype=bf16) for count in (heads, kv_heads, kv_heads))
    caches = [torch.empty(4, 256, kv_heads, dim, dtype=bf16) for _ in range(2)]
    small_pages = [cache.view(64, 16, kv_heads, dim) for cache in caches]
    ints, tables = torch.zeros(n + 1, dtype=torch.int32), torch.zeros(n, 16, dtype=torch.int32)
    norm, head_norm, angles = torch.empty(hidden, dtype=bf16), torch.empty(dim, dtype=bf16), torch.empty(4096, dim)
    x, few, many = (torch.empty(rows, hidden, dtype=bf16) for rows in (1, 3, 16))
    weights = {
        "qkv": torch.empty(4096, hidden, dtype=bf16),
        "o": torch.empty(hidden, 2048, dtype=bf16),
        "gate_up": torch.empty(2 * inner, hidden, dtype=bf16),
        "down": torch.empty(hidden, inner, dtype=bf16),
        "head": torch.empty(151936, hidden, dtype=bf16),
    }
    x_inner, x_o = torch.empty(1, inner, dtype=bf16), torch.empty(16, 2048, dtype=bf16)
    scratch = kernels.DecodeWorkspace.allocate(16, heads, kv_heads, dim, torch.device("cpu"))
    on = {"pdl": True}
    fused = (qkv, head_norm, head_norm, 1e-6, angles, ints, ints, *caches, tables, ints[:n], 0.1, heads, scratch)
    return {
        "store_kv": lambda: kernels.store_kv(k, v, *caches, ints, **on),
        "decode": lambda: kernels.paged_decode_attention(q, *caches, tables, ints[:n], 0.1, scratch, **on),
        "decode, pages of 16": lambda: kernels.paged_decode_attention(
            q, *small_pages, tables, ints[:n], 0.1, scratch, **on
        ),
        "decode step": lambda: kernels.rope_store_attend(*fused, **on),
        "prefill": lambda: kernels.prefill_attention(q, k, v, ints, 1, 0.1),
        "paged prefill": lambda: kernels.paged_prefill_attention(q, *caches, ints, ints, tables, 1, 0.1),
        "qk_norm_rope_store": lambda: kernels.qk_norm_rope_store(
            qkv, head_norm, head_norm, 1e-6, angles, ints, ints, *caches, heads, kv_heads, dim, **on
        ),
        "add_rms_norm": lambda: kernels.add_rms_norm(x, x, norm, 1e-6, **on),
        "silu_and_mul": lambda: kernels.silu_and_mul(torch.empty(n, 2 * inner, dtype=bf16), **on),
        "norm_linear": lambda: kernels.norm_linear(x, norm, 1e-6, weights["qkv"], **on),
        "linear, 3 rows": lambda: kernels.linear(few, weights["qkv"], **on),
        "linear, o": lambda: kernels.linear(x_o[:1], weights["o"], x, **on),
        "norm_gate_up_silu": lambda: kernels.norm_gate_up_silu(x, norm, 1e-6, weights["gate_up"], **on),
        "linear, down": lambda: kernels.linear(x_inner, weights["down"], x, **on),
        "linear, LM head": lambda: kernels.linear(x, weights["head"], **on),
        "linear, 16 rows": lambda: kernels.linear(many, weights["qkv"], **on),
        "linear, 16 rows, o": lambda: kernels.linear(x_o, weights["o"], many, **on),
        "split_linear, 64 rows": lambda: kernels.split_linear(torch.empty(64, 2048, dtype=bf16), weights["o"], **on),
        "split_linear, 256 rows": lambda: kernels.split_linear(
            torch.empty(256, inner, dtype=bf16), weights["down"], **on
        ),
        "add_rms_norm, pieces": lambda: kernels.add_rms_norm(torch.empty(4, n, hidden), x, norm, 1e-6, **on),
        "gate_up_silu, 16 rows": lambda: kernels.gate_up_silu(many, weights["gate_up"], **on),
        "sample": lambda: kernels.sample(
            torch.empty(1, 151936, dtype=bf16), torch.ones(1), torch.zeros(1, dtype=torch.int64), ints, **on
        ),
    }


def main(capability: int, only: str = "") -> None:
    compiled = install(capability)
    for name, call in cases().items():
        if only and only not in name:
            continue
        compiled.clear()
        try:
            call()
            lines: list[dict[str, Any]] = [{"case": name, **kernel} for kernel in compiled]
        except Exception as error:
            lines = [{"case": name, "error": f"{type(error).__name__}: {error}"}]
        for line in lines:
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
