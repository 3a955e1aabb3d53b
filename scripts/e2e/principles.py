"""The principles of appendix B in exact arithmetic: seven small computations to check by hand.

    tokenizer   B.1.1  text -> ids -> text; scores -> probabilities -> one token
    attention   B.1.2  softmax(Q K^T / sqrt(d)) V, and what the causal mask protects
    timeline    B.1.3  known tokens are always one ahead of the KV cache
    cache       B.1.4  positions computed without and with a KV cache
    memory      B.1.5  bytes per token, per block, and how many requests fit
    slots       B.2.3  position -> logical block -> physical block -> slot
    shapes      B.3    width of every projection, for one rank or several

Read it from the top. Each example puts numbers into the formulas of src/nanolab/principles/ and returns what
it found: `facts` for the result block, `checks` for the verdict. The commands at the end run and record them.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

import nanolab.principles
from nanolab.cli import model_option, out_option
from nanolab.evidence import Recording, describe_device
from nanolab.evidence.provenance import Source
from nanolab.principles.attention import attention, max_abs_difference
from nanolab.principles.generation import Head, run_with_cache, run_without_cache, timeline
from nanolab.principles.layout import RankShapes, num_blocks, slot
from nanolab.principles.memory import GB, GIB, KIB, MIB, Budget, kv_bytes, kv_bytes_per_token
from nanolab.principles.sampling import greedy, sampled_frequencies, sampling_error, softmax
from nanolab.principles.shape import QWEN3_0_6B
from nanolab.principles.text import load_tokenizer, tokenize
from nanolab.verdicts import EvidenceType, Verdict

Example = tuple[dict[str, Any], dict[str, bool]]  # facts, checks


def near(found: Any, by_hand: Any, tolerance: float = 5e-5) -> bool:
    """Equal to the four decimals of a number worked out by hand."""
    return bool(np.allclose(found, by_hand, rtol=0, atol=tolerance))


def decimals(values: Any) -> Any:
    """Ten decimals, for the record: hosts differ in the sixteenth, and a reader needs four."""
    return np.round(values, 10).tolist()


# B.1.1  A token is not a character --------------------------------------------------------------------------


def tokenizer_example(model: Path) -> Example:
    """The text survives encode and decode; three scores become probabilities, and one of them a choice."""
    text = tokenize(load_tokenizer(model))

    probabilities = softmax([2, 1, 0])  # e^2, e^1, e^0, each divided by their sum
    draws = 10_000
    frequencies = sampled_frequencies(probabilities, draws, seed=0)

    facts = text.facts() | {
        "scores": [2, 1, 0],
        "probabilities": decimals(probabilities),
        "greedy_index": greedy([2, 1, 0]),
        "draws": draws,
        "sampled_frequencies": decimals(frequencies),
    }
    return facts, {
        "decoding all ids together gives the text back exactly": text.decoded == text.text,
        "the chat template holds the text": text.text in text.chat_template_text,
        "softmax is [0.66524, 0.24473, 0.09003]": near(probabilities, [0.66524, 0.24473, 0.09003], 5e-6),
        "greedy chooses index 0": facts["greedy_index"] == 0,
        "sampled frequencies are near them": near(frequencies, probabilities, sampling_error(draws)),
    }


# B.1.2  Later positions never change earlier ones -----------------------------------------------------------


def attention_example() -> Example:
    """Three positions of width 2. Q and K decide how to match, V decides what is mixed."""
    x = np.array([[1, 0], [0, 1], [1, 1]])
    same = attention(q=x, k=x, v=x)

    # Change the last position only. With the mask no earlier row can see it; without the mask every row does.
    changed = x.copy()
    changed[-1] = [9, -5]
    masked = max_abs_difference(attention(changed, changed, changed).output[:-1], same.output[:-1])
    open_before = attention(x, x, x, causal=False).output
    open_after = attention(changed, changed, changed, causal=False).output
    unmasked = max_abs_difference(open_after[:-1], open_before[:-1])

    # The same weights mix other values: V need not be K.
    v = np.array([[1, 0], [0, 2], [1, 2]])
    other = attention(q=x, k=x, v=v)

    root2 = math.sqrt(2)
    facts = {
        "scores": decimals(same.scores),
        "weights": decimals(same.weights),
        "output": decimals(same.output),
        "masked_earlier_delta": masked,
        "unmasked_earlier_delta": decimals(unmasked),
        "other_v_output": decimals(other.output),
    }
    return facts, {
        "last row of scores is [1, 1, 2] / sqrt(2)": near(same.scores[-1], [1 / root2, 1 / root2, 2 / root2]),
        "last row of weights is [0.2483, 0.2483, 0.5035]": near(same.weights[-1], [0.2483, 0.2483, 0.5035]),
        "last output is [0.7517, 0.7517]": near(same.output[-1], [0.7517, 0.7517]),
        "every row of weights sums to 1": near(same.weights.sum(axis=-1), 1, 1e-12),
        "masked: earlier outputs did not move at all": masked == 0,
        "unmasked: earlier outputs moved by 8.15455": near(unmasked, 8.15455, 5e-6),
        "with the other V it is [0.751745, 1.503490]": near(other.output[-1], [0.751745, 1.503490], 1e-6),
    }


# B.1.3  The newest token is known, but not yet cached -------------------------------------------------------


def timeline_example() -> Example:
    """Input t1 t2 t3, output t4 t5 t6. Prefill chooses the first output, so two decode rounds are enough."""
    rounds = timeline(prompt=["t1", "t2", "t3"], outputs=["t4", "t5", "t6"])

    widths = [len(r.inputs) for r in rounds]
    facts = {
        "rounds": [dataclasses.asdict(r) for r in rounds],
        "input_widths": widths,
    }
    return facts, {
        "input widths are 3, 1, 1": widths == [3, 1, 1],
        "after every round, known = kv + 1": all(r.known_token_count == r.kv_count + 1 for r in rounds),
    }


# B.1.4  What a cache saves ----------------------------------------------------------------------------------


def cache_example(prompt_len: int = 64, outputs: int = 8) -> Example:
    """One attention head, the same inputs twice. The cache changes what is computed, not what comes out."""
    last_len = prompt_len + outputs - 1  # the last chosen token is never an input
    x = np.random.default_rng(0).normal(size=(last_len, 4))
    head = Head.random(width=4, seed=1)

    full = run_without_cache(head, x, prompt_len)
    cached = run_with_cache(head, x, prompt_len)

    error = max_abs_difference(full.last_outputs, cached.last_outputs)

    facts = {
        "prompt_len": prompt_len,
        "outputs": outputs,
        "input_widths_without_cache": full.input_widths,
        "input_widths_with_cache": cached.input_widths,
        "positions_without_cache": full.total_positions,
        "positions_with_cache": cached.total_positions,
        "full_last": decimals(full.last_outputs[-1]),
        "cached_last": decimals(cached.last_outputs[-1]),
        "max_error": decimals(error),
    }
    return facts, {
        "without a cache: 64 + 65 + ... + 71 = 540 positions": full.total_positions == 540,
        "with a cache: 64 + 7 x 1 = 71 positions": cached.total_positions == 71,
        "the last outputs are equal to rounding": error < 1e-12,
    }


# B.1.5  What a cache costs ----------------------------------------------------------------------------------


def memory_example() -> Example:
    """Qwen3-0.6B in bfloat16, then a 16 GiB card with 1.2 GB of weights and 3 GiB set aside."""
    per_token = kv_bytes_per_token(QWEN3_0_6B)  # 2 x 28 layers x 8 KV heads x 128 x 2 bytes
    request = kv_bytes(QWEN3_0_6B, 4096)
    block = kv_bytes(QWEN3_0_6B, 256)
    card = Budget(gpu_bytes=16 * GIB, weight_bytes=12 * GB // 10, reserve_bytes=3 * GIB)

    facts = {
        "bytes_per_token": per_token,
        "kib_per_token": per_token / KIB,
        "mib_per_4096_tokens": request / MIB,
        "gib_per_8_such_requests": 8 * request / GIB,
        "mib_per_256_token_block": block / MIB,
        "weights_gib": card.weight_bytes / GIB,
        "kv_gib": card.kv_bytes / GIB,
        "pool_blocks": card.pool_blocks,
        "blocks_per_request": card.blocks_per_request,
        "requests": card.requests,
    }
    return facts, {
        "one token: 114,688 bytes = 112 KiB": per_token == 114_688 == 112 * KIB,
        "4096 tokens: 448 MiB": request == 448 * MIB,
        "eight such requests: 3.5 GiB": 8 * request == 3.5 * GIB,
        "one 256-token block over all layers: 28 MiB": block == 28 * MIB,
        "1.2 GB of weights are 1.118 GiB": near(card.weight_bytes / GIB, 1.118, 5e-4),
        "left for KV: 11.882 GiB": near(card.kv_bytes / GIB, 11.882, 5e-4),
        "that holds 434 blocks": card.pool_blocks == 434,
        "or 27 requests of 16 blocks": (card.requests, card.blocks_per_request) == (27, 16),
    }


# B.2.3  From position to slot -------------------------------------------------------------------------------


def slots_example() -> Example:
    """Blocks of 4 positions; the request's logical blocks 0, 1, 2 lie in physical blocks 17, 5, 23."""
    table, size = [17, 5, 23], 4
    slots = {position: slot(table, position, size) for position in (0, 6, 8)}
    blocks = {tokens: num_blocks(tokens, 256) for tokens in (255, 256, 257)}

    facts = {
        "block_size": size,
        "block_table": table,
        "slots": [
            {"position": p, "logical": p // size, "physical": table[p // size], "offset": p % size, "slot": s}
            for p, s in slots.items()
        ],
        "blocks_for_tokens": [{"tokens": tokens, "blocks": count} for tokens, count in blocks.items()],
    }
    return facts, {
        "positions 0, 6, 8 lie in slots 68, 22, 92": slots == {0: 68, 6: 22, 8: 92},
        "255, 256, 257 tokens need 1, 1, 2 blocks of 256": blocks == {255: 1, 256: 1, 257: 2},
    }


# B.3  Shapes on one rank ------------------------------------------------------------------------------------


def shapes_example(tp: int) -> Example:
    """Qwen3-0.6B divided over `tp` ranks. All ranks together must give the undivided widths again."""
    rank = RankShapes(tp)
    facts = {
        "tp": tp,
        "q_heads_per_rank": rank.q_heads,
        "kv_heads_per_rank": rank.kv_heads,
        "packed_qkv_rows": rank.packed_rows(),
        "activations_per_rank": rank.activations(),
    }
    return facts, {
        f"Q heads: {tp} x {rank.q_heads} = 16": tp * rank.q_heads == 16,
        f"KV heads: {tp} x {rank.kv_heads} = 8": tp * rank.kv_heads == 8,
        f"qkv: {tp} x {rank.qkv_width} = 2048 + 1024 + 1024 = 4096": tp * rank.qkv_width == 4096,
        f"gate_up: {tp} x {rank.gate_up_width} = 6144": tp * rank.gate_up_width == 6144,
    }


# Commands: run an example, print it, record it --------------------------------------------------------------


def record(name: str, title_en: str, title_zh: str, out: Path | None, example: Callable[[], Example]) -> None:
    """PASS when every check holds. `static`: arithmetic only, no engine ran."""
    sources: list[Source] = [Path(__file__), nanolab.principles]
    block_id = out.stem if out else f"principles-{name}"
    with Recording(block_id, title_en=title_en, title_zh=title_zh, out=out, sources=sources) as rec:
        rec.device = describe_device("cpu")
        facts, checks = example()
        rec.result.update(facts, checks=checks)
        for key, value in facts.items():
            click.echo(f"{key}: {value}")
        for claim, holds in checks.items():
            click.echo(f"{'ok  ' if holds else 'BAD '} {claim}")
        rec.finish(Verdict.PASS if all(checks.values()) else Verdict.FAIL, EvidenceType.STATIC)


@click.group(help=__doc__.split("Read it")[0] if __doc__ else None)
def main() -> None:
    pass


@main.command("tokenizer")
@model_option
@out_option
def tokenizer_command(model: Path, out: Path | None) -> None:
    """Encode and decode a fixed text; softmax, greedy and sampling."""
    record("tokenizer", "Tokens and sampling", "token 与采样", out, lambda: tokenizer_example(model))


@main.command("attention")
@out_option
def attention_command(out: Path | None) -> None:
    """Causal attention by hand."""
    record("attention", "Causal attention by hand", "手算因果注意力", out, attention_example)


@main.command("timeline")
@out_option
def timeline_command(out: Path | None) -> None:
    """Known tokens and KV, round by round."""
    record("timeline", "Known tokens and KV", "已知 token 与 KV", out, timeline_example)


@main.command("cache")
@out_option
def cache_command(out: Path | None) -> None:
    """Positions computed without and with a cache."""
    record("cache", "What a cache saves", "缓存省下了什么", out, cache_example)


@main.command("memory")
@out_option
def memory_command(out: Path | None) -> None:
    """Bytes of KV, and how many requests fit."""
    record("memory", "Bytes of the KV cache", "KV cache 的字节数", out, memory_example)


@main.command("slots")
@out_option
def slots_command(out: Path | None) -> None:
    """Position -> block table -> slot."""
    record("slots", "From position to slot", "从位置到 slot", out, slots_example)


@main.command("shapes")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor-parallel ranks.")
@out_option
def shapes_command(tp: int, out: Path | None) -> None:
    """Width of every projection on one rank."""
    record(f"shapes-tp{tp}", "Shapes on one rank", "单个 rank 上的形状", out, lambda: shapes_example(tp))


if __name__ == "__main__":
    main()
