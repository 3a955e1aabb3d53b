"""Two turns of one conversation: which blocks the second finds in the cache, on a warm engine and on a cold one (B.7).

The second turn comes in two versions: the conversation as it was (hit), and the same with a time stamp at the front
of the system message (miss). Everything is explained from token ids; equal text or a session id proves nothing.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import click

from nanolab import cli, sources
from nanolab.cases import multi_turn
from nanolab.errors import LabError
from nanolab.evidence import Recording, describe_device
from nanolab.models import chat, describe_model
from nanolab.sources import EngineDriver, SamplingSpec
from nanolab.verdicts import EvidenceType, Verdict

# What follows from the sampled answer: another CPU may round its way to another one.
VOLATILE = ["answer*", "ids.*", "expected.*", "parting.*", "same_output_warm_and_cold"]
VOLATILE += [
    f"turns.*.{name}*" for name in ("prompt_tokens", "scheduled", "computed", "block_table", "output", "finish")
]
AROUND = 6  # ids shown on both sides of the place where two sequences part


def run_turn(driver: EngineDriver, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    """One request alone on the engine: its first step's state, its block table and its whole output."""
    seq = driver.add(prompt, SamplingSpec(max_tokens=max_tokens))
    first, computed = None, 0
    while driver.has_work():
        record = driver.step()
        if record.phase == "prefill":
            computed += sum(state.scheduled for state in record.batch)
        first = first or record.batch[0]
    assert first is not None
    return {
        "prompt_tokens": len(prompt),
        "cached": first.cached,
        "scheduled": first.scheduled,
        "computed_in_prefill": computed,
        "block_table": list(first.blocks),
        "output_ids": list(seq.completion_token_ids),
        "finish_reason": driver.finish_reason(seq),
    }


def play(engine: sources.EngineSource, model: Path, options: dict[str, Any], max_tokens: int, rec: Recording) -> None:
    """R1 and both versions of R2 on one engine, then R2 on a new one."""
    with engine.create_engine(model, **options) as warm:
        rec.device, rec.config = describe_device(warm.device), warm.describe() | {"max_tokens": max_tokens}
        cli.announce(engine=engine.kind, device=warm.device, attention=warm.attention_backend)
        tokenizer, size = warm.tokenizer, warm.block_size
        r1 = multi_turn.templated(tokenizer, multi_turn.first_turn())
        check_room(r1, max_tokens, warm.max_model_len)
        turns = {"R1": run_turn(warm, r1, max_tokens)}
        history = r1 + turns["R1"]["output_ids"]
        answer = tokenizer.decode(turns["R1"]["output_ids"], skip_special_tokens=True)
        r2 = multi_turn.templated(tokenizer, multi_turn.second_turn(answer))
        stamped = multi_turn.templated(tokenizer, multi_turn.second_turn(answer, stamped=True))
        turns["R2 hit"] = run_turn(warm, r2, max_tokens)
        turns["R2 miss"] = run_turn(warm, stamped, max_tokens)
    release_memory(rec.device["kind"])
    with engine.create_engine(model, **options) as cold:
        turns["R2 cold"] = run_turn(cold, r2, max_tokens)
    expected = {"R2 hit": multi_turn.reuse(history, r2, size), "R2 miss": multi_turn.reuse(history, stamped, size)}
    rec.result = {
        "turns": turns,
        "answer": answer,
        "ids": {"R1": r1, "R1_output": turns["R1"]["output_ids"], "R2": r2},
        "expected": {name: describe_reuse(found) for name, found in expected.items()},
        "parting": {"hit": parting(tokenizer, history, r2), "miss": parting(tokenizer, history, stamped)},
        "answer_ids_survive": has_run(r2, turns["R1"]["output_ids"], tokenizer),
        "same_output_warm_and_cold": turns["R2 hit"]["output_ids"] == turns["R2 cold"]["output_ids"],
    }


def release_memory(device: str) -> None:
    """Give the first engine's pool back to the card, so that the second can size its own."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def describe_reuse(found: multi_turn.Reuse) -> dict[str, Any]:
    names = ("common", "written", "length", "full_blocks", "cached", "computed")
    return {name: getattr(found, name) for name in names} | {"why": found.why()}


def parting(tokenizer: Any, left: list[int], right: list[int]) -> dict[str, Any]:
    """The ids around the first difference, and what they say."""
    at = multi_turn.common_prefix(left, right)
    window = slice(max(0, at - AROUND), at + AROUND)
    sides = {"first": left[window], "second": right[window]}
    return {"at": at} | {name: {"ids": ids, "text": tokenizer.decode(ids)} for name, ids in sides.items()}


def has_run(ids: list[int], run: list[int], tokenizer: Any) -> bool:
    """Whether the answer's ids, without a final stop token, stand in the second prompt as they were generated."""
    special = set(tokenizer.all_special_ids)
    run = run[:-1] if run and run[-1] in special else run
    return any(ids[i : i + len(run)] == run for i in range(len(ids) - len(run) + 1))


def check_room(r1: list[int], max_tokens: int, limit: int) -> None:
    """The second prompt holds the first, the answer and a question; refuse early what cannot fit."""
    needed = len(r1) + 3 * max_tokens + 256
    if needed > limit:
        raise LabError(
            f"the conversation needs up to {needed} positions, the engine allows {limit}; raise --max-model-len"
        )


def faults(result: dict[str, Any]) -> list[str]:
    """Where the engine did not do what the ids say; empty means PASS."""
    turns, expected = result["turns"], result["expected"]
    wanted = {"R1": 0, "R2 hit": expected["R2 hit"]["cached"], "R2 miss": expected["R2 miss"]["cached"], "R2 cold": 0}
    wrong = [
        f"{name}: {turns[name]['cached']} cached, ids say {cached}"
        for name, cached in wanted.items()
        if turns[name]["cached"] != cached
    ]
    for name, turn in turns.items():
        if turn["cached"] + turn["computed_in_prefill"] != turn["prompt_tokens"]:
            wrong.append(f"{name}: cached {turn['cached']} + computed {turn['computed_in_prefill']} is not the prompt")
    if expected["R2 miss"]["cached"]:
        wrong.append("the stamped second turn was meant to miss, but its ids share a full block")
    if not expected["R2 hit"]["cached"]:
        wrong.append("the second turn shares no full block; choose a smaller --block-size")
    return wrong


def shorten(values: list[int], ends: int) -> str:
    """The list, or its two ends."""
    if len(values) <= 2 * ends + 1:
        return str(values)
    left, right = (", ".join(map(str, part)) for part in (values[:ends], values[-ends:]))
    return f"[{left}, ... {len(values) - 2 * ends} more ..., {right}]"


def say(result: dict[str, Any], all_ids: bool) -> None:
    for name, ids in result["ids"].items():
        click.echo(f"{name} ids ({len(ids)}): {ids if all_ids else shorten(ids, 12)}")
    click.echo("\nturn      prompt  cached  computed  block table")
    for name, turn in result["turns"].items():
        counts = f"{turn['prompt_tokens']:>6}  {turn['cached']:>6}  {turn['computed_in_prefill']:>8}"
        click.echo(f"{name:8}  {counts}  {shorten(turn['block_table'], 4)}")
    for name, found in result["expected"].items():
        click.echo(f"\n{name}: {found['why']}")
        place = result["parting"][name.split()[1]]
        click.echo(f"  R1 and its answer, then R2, part at id {place['at']}:")
        for side in ("first", "second"):
            click.echo(f"    {side:6} {place[side]['ids']}  {place[side]['text']!r}")
    click.echo("\nR2 cold: a new engine has no blocks, so the same ids find nothing")
    survive = "stand unchanged" if result["answer_ids_survive"] else "do not stand unchanged"
    click.echo(f"The answer's ids {survive} in the second prompt; the template and the tokenizer decide that.")


@click.command()
@click.option("--block-size", type=click.IntRange(1), default=256, show_default=True, help="Positions in a KV block.")
@click.option("--max-tokens", type=click.IntRange(1), default=32, show_default=True, help="Tokens of each answer.")
@click.option("--max-model-len", type=click.IntRange(1), default=4096, show_default=True)
@click.option("--all-ids", is_flag=True, help="Print the token ids whole, not only their ends.")
@click.option("--dtype", default="auto", show_default=True, help="auto, bfloat16, float16 or float32.")
@click.option("--attention-backend", default="auto", show_default=True, help="auto, flash_attn, triton or torch.")
@cli.source_option
@cli.model_option
@cli.out_option
def main(
    block_size: int, max_tokens: int, max_model_len: int, all_ids: bool, dtype: str, attention_backend: str,
    source: Path | None, model: Path, out: Path | None,
) -> None:  # fmt: skip
    """PASS: on every engine the second turn found exactly the blocks that its ids allow."""
    engine = sources.resolve(source)
    options = {
        "enforce_eager": True,
        "max_num_seqs": 1,
        "max_num_batched_tokens": max_model_len,
        "max_model_len": max_model_len,
        "gpu_memory_utilization": 0.5,
        "kvcache_block_size": block_size,
        "dtype": dtype,
        "attention_backend": attention_backend,
    }
    block_id = out.stem if out else "multi-turn"
    titles = {"title_en": "What a second turn finds in the cache", "title_zh": "第二轮对话在缓存里找到什么"}
    with Recording(block_id, **titles, out=out, sources=[chat, multi_turn]) as rec:
        rec.engine, rec.model = engine.describe(), describe_model(model)
        play(engine, model, options, max_tokens, rec)
        rec.volatile += VOLATILE
        wrong = faults(rec.result)
        rec.notes += wrong
        say(rec.result, all_ids)
        for line in wrong:
            click.echo(f"BAD  {line}", err=True)
        on_gpu = rec.device is not None and rec.device["kind"] == "cuda"
        rec.finish(Verdict.FAIL if wrong else Verdict.PASS, EvidenceType.GPU if on_gpu else EvidenceType.CPU_ENGINE)


if __name__ == "__main__":
    main()
