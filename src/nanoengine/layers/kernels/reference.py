"""What every kernel computes, in plain torch: slow, obvious, and accumulated in float32."""

from __future__ import annotations

from itertools import pairwise

import torch


def gather_pages(cache: torch.Tensor, block_table: torch.Tensor, length: int) -> torch.Tensor:
    """cache [blocks, page, KV, D], one sequence's block table -> its first `length` keys or values, [length, KV, D]."""
    page = cache.shape[1]
    blocks = block_table[: -(-length // page)].long()
    return cache[blocks].flatten(0, 1)[:length]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """q [Lq, H, D] as the last Lq positions of k, v [Lk, KV, D]; causal, GQA, float32 inside and out."""
    group = q.shape[1] // k.shape[1]
    k = k.float().repeat_interleave(group, dim=1)
    v = v.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q.float(), k) * scale
    position = torch.arange(q.shape[0], device=q.device) + k.shape[0] - q.shape[0]
    hidden = torch.arange(k.shape[0], device=q.device)[None, :] > position[:, None]
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


def paged_prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """[total, H, D] -> [total, H, D] in float32."""
    out = []
    for s in range(cu_seqlens_q.shape[0] - 1):
        length = int(cu_seqlens_k[s + 1] - cu_seqlens_k[s])
        k, v = (gather_pages(cache, block_tables[s], length) for cache in (k_cache, v_cache))
        out.append(attention(q[int(cu_seqlens_q[s]) : int(cu_seqlens_q[s + 1])], k, v, scale))
    return torch.cat(out)


def prefill_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, scale: float
) -> torch.Tensor:
    """The same without a cache: every sequence's keys lie beside its queries."""
    pieces = [slice(a, b) for a, b in pairwise(cu_seqlens.tolist())]
    return torch.cat([attention(q[piece], k[piece], v[piece], scale) for piece in pieces])


def paged_decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """q [n, H, D] -> [n, H, D] in float32; zeros where the context length is 0."""
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    for row, length in enumerate(context_lens.tolist()):
        if length:
            k, v = (gather_pages(cache, block_tables[row], length) for cache in (k_cache, v_cache))
            out[row] = attention(q[row : row + 1], k, v, scale)[0]
    return out


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Write k, v [n, KV, D] at their slots, in place; -1 is skipped."""
    written = slot_mapping >= 0
    slots = slot_mapping[written].long()
    k_cache.flatten(0, 1)[slots] = k[written]
    v_cache.flatten(0, 1)[slots] = v[written]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Rounded where transformers' Qwen3RMSNorm rounds."""
    wide = x.float()
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return weight * normed


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    summed = x if residual is None else x + residual
    return rms_norm(summed, weight, eps), summed


def rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """x [n, heads, D], cos_sin [n, D] = cosines | sines; NeoX halves, in float32, rounded once."""
    cos, sin = cos_sin.float()[:, None, :].chunk(2, dim=-1)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def qk_norm_rope(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [n, H, D], k and v [n, KV, D] from the QKV projection's rows."""
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    cos_sin = cos_sin_cache[positions.long()]
    return rotate(rms_norm(q, q_weight, eps), cos_sin), rotate(rms_norm(k, k_weight, eps), cos_sin), v


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def linear(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    y = (x.float() @ weight.float().T).to(x.dtype)
    return y if residual is None else y + residual
