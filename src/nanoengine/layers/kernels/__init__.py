"""Triton kernels of the engine: no compile step at install, any Ampere or newer GPU.

Importing this package does not import triton; naming a kernel does, so the engine runs without triton as long as
no kernel is used. `reference.py` says in plain torch what every kernel computes; the tests compare the two under
Triton's interpreter on CPU, and `scripts/maintain/bench_kernels.py` on a GPU.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .activation import silu_and_mul
    from .attention_decode import (
        DecodeTunables,
        DecodeWorkspace,
        merge_splits,
        paged_decode_attention,
    )
    from .attention_prefill import PrefillTunables, paged_prefill_attention, prefill_attention
    from .common import supports_pdl
    from .decode_step import rope_store_attend
    from .kv_store import store_kv
    from .medium_linear import SplitTunables, split_linear, splits_well
    from .norm import add_rms_norm
    from .norm_rope import qk_norm_rope_store
    from .sampling import sample
    from .small_linear import LinearTunables, gate_up_silu, linear, norm_gate_up_silu, norm_linear

_HOME = {
    "DecodeTunables": "attention_decode",
    "DecodeWorkspace": "attention_decode",
    "LinearTunables": "small_linear",
    "PrefillTunables": "attention_prefill",
    "SplitTunables": "medium_linear",
    "add_rms_norm": "norm",
    "gate_up_silu": "small_linear",
    "linear": "small_linear",
    "merge_splits": "attention_decode",
    "norm_gate_up_silu": "small_linear",
    "norm_linear": "small_linear",
    "paged_decode_attention": "attention_decode",
    "paged_prefill_attention": "attention_prefill",
    "prefill_attention": "attention_prefill",
    "qk_norm_rope_store": "norm_rope",
    "rope_store_attend": "decode_step",
    "sample": "sampling",
    "silu_and_mul": "activation",
    "split_linear": "medium_linear",
    "splits_well": "medium_linear",
    "store_kv": "kv_store",
    "supports_pdl": "common",
}

__all__ = [
    "DecodeTunables",
    "DecodeWorkspace",
    "LinearTunables",
    "PrefillTunables",
    "SplitTunables",
    "add_rms_norm",
    "gate_up_silu",
    "linear",
    "merge_splits",
    "norm_gate_up_silu",
    "norm_linear",
    "paged_decode_attention",
    "paged_prefill_attention",
    "prefill_attention",
    "qk_norm_rope_store",
    "rope_store_attend",
    "sample",
    "silu_and_mul",
    "split_linear",
    "splits_well",
    "store_kv",
    "supports_pdl",
]


def __getattr__(name: str) -> Any:
    """Import the kernel's module when its name is first used (PEP 562), and keep it: a launch should not look again."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = kernel = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return kernel
