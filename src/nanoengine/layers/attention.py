"""Attention over a paged KV cache, and the choice of who computes it.

A layer's cache is [num_blocks, block_size, kv_heads, head_dim], twice: keys and values. A backend does three things:
store this step's K and V into their slots, attend for a prefill step, attend for a decode step.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import torch
from torch import nn

from ..errors import ConfigError
from ..utils.context import StepInputs


class AttentionBackend(Protocol):
    """q [T, heads, head_dim]; k, v [T, kv_heads, head_dim]; the result has q's shape."""

    def reserve(self, max_batch: int, num_heads: int, k_cache: torch.Tensor) -> None:
        """Prepare for decode steps of up to `max_batch` sequences; called once, when the cache exists."""

    def store(
        self, k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepInputs
    ) -> None: ...

    def prefill(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: StepInputs,
    ) -> torch.Tensor: ...

    def decode(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: StepInputs
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class BackendChoice:
    """Which backend runs, and why; scripts print it."""

    name: str
    reason: str


# In the order in which 'auto' tries them. On an H200 a decode step with the Triton kernels was as fast as one with
# flash-attn or faster; the two are close at medium batch.
BACKENDS = {"triton": "TritonBackend", "flash_attn": "FlashAttnBackend", "torch": "TorchBackend"}
OLDEST_GPU = (8, 0)  # compute capability
PAGE_MULTIPLES = {"triton": 16, "flash_attn": 256, "torch": 1}


def choose_backend(wanted: str, device: str, block_size: int) -> BackendChoice:
    """Settle `attention_backend`; 'auto' takes the first of triton, flash_attn, torch that can run here."""
    if wanted != "auto":
        if refusal := why_not(wanted, device, block_size):
            instead = choose_backend("auto", device, block_size).name
            raise ConfigError(
                f"attention_backend {wanted!r} cannot run here: {refusal}; 'auto' would take {instead!r} here"
            )
        return BackendChoice(wanted, "asked for")
    passed_over: list[str] = []
    for name in BACKENDS:
        refusal = why_not(name, device, block_size)
        if refusal is None:
            return BackendChoice(name, "; ".join(passed_over) or "first choice on this machine")
        passed_over.append(f"not {name}: {refusal}")
    raise AssertionError("the torch backend always runs")


def why_not(name: str, device: str, block_size: int) -> str | None:
    """The reason `name` cannot run on this device with this page size, or None if it can."""
    multiple = PAGE_MULTIPLES[name]
    if name != "torch" and device != "cuda":
        return f"it needs a CUDA device and the engine runs on {device}"
    if block_size % multiple:
        return f"kvcache_block_size is {block_size}, and it needs a multiple of {multiple}"
    if name == "torch":
        return None
    capability = torch.cuda.get_device_capability()
    if capability < OLDEST_GPU:
        found, oldest = (".".join(map(str, pair)) for pair in (capability, OLDEST_GPU))
        return f"this GPU has compute capability {found}, and it needs {oldest} (Ampere) or newer"
    package = "flash_attn" if name == "flash_attn" else "triton"
    try:
        import_module(package)
    except (ImportError, OSError, RuntimeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            return f"{package} is not installed"
        return f"{package} is installed but does not load ({error}); rebuild it for torch {torch.__version__}"
    return None


def make_backend(choice: BackendChoice, scale: float) -> AttentionBackend:
    module = import_module(f".attention_{choice.name}", __package__)
    backend: AttentionBackend = getattr(module, BACKENDS[choice.name])(scale)
    return backend


class Attention(nn.Module):
    def __init__(self, backend: AttentionBackend) -> None:
        super().__init__()
        self.backend = backend
        self.k_cache = self.v_cache = torch.empty(0)  # one layer's slice of the pool, set once it exists

    @property
    def has_cache(self) -> bool:
        return self.k_cache.numel() > 0

    def store(self, k: torch.Tensor, v: torch.Tensor, step: StepInputs) -> None:
        """Write this step's K and V into their slots; must come before anything reads the cache."""
        if self.has_cache:
            self.backend.store(k, v, self.k_cache, self.v_cache, step)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """[T, heads, head_dim] -> [T, heads, head_dim], over keys and values that are already stored."""
        if step.is_prefill:
            return self.backend.prefill(q, k, v, self.k_cache, self.v_cache, step)
        return self.backend.decode(q, self.k_cache, self.v_cache, step)
