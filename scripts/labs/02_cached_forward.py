"""Forward passes of Transformers with and without past_key_values, along one trajectory (B.1.6).

The counts are arithmetic and hold everywhere (540 and 71 for 64 and 8); the times are this machine's. A count says
nothing about speed: measure it, with and without, and give prefill and decode apart.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from nanolab import cli, numerics
from nanolab.errors import LabError
from nanolab.evidence import Recording, describe_device
from nanolab.models import describe_model
from nanolab.numerics import cached_forward
from nanolab.observe import model_dims
from nanolab.verdicts import EvidenceType, Verdict

ENGINE = {"kind": "transformers", "package": "transformers", "commit": None, "patches": []}


def prompt_ids(length: int) -> list[int]:
    """Ids of ordinary text in every tokenizer used; what they say does not matter here."""
    return [32 + 7 * i % 200 for i in range(length)]


def run_both(model: Any, prompt: list[int], steps: int, repeats: int) -> dict[str, Any]:
    """One unmeasured run of each path, then `repeats` of each in turns; facts for the log."""
    without = cached_forward.generate(model, prompt, steps, cached=False)
    with_cache = cached_forward.generate(model, prompt, steps, cached=True, given=without.tokens)
    runs: dict[bool, list[cached_forward.Generation]] = {False: [], True: []}
    for _ in cli.progress(range(repeats), "repeats"):
        for cached, measured in runs.items():
            measured.append(cached_forward.generate(model, prompt, steps, cached=cached, given=without.tokens))
    seconds = {"without_cache": cached_forward.times(runs[False]), "with_cache": cached_forward.times(runs[True])}
    return cached_forward.compare_generations(without, with_cache) | {"seconds": seconds, "tokens": without.tokens}


def say(facts: dict[str, Any], steps: int) -> None:
    click.echo(
        f"input positions: without cache {facts['positions_without_cache']}, with {facts['positions_with_cache']}"
    )
    for name in ("max_abs_logit_error", "relative_l2_logit_error"):
        click.echo(f"{name} {facts[name]:.4g}")
    click.echo(f"same_top1_steps {facts['same_top1_steps']} of {steps}")
    for path, seconds in facts["seconds"].items():
        prefill, decode = seconds["median_prefill_seconds"], seconds["median_decode_seconds"]
        click.echo(
            f"{path}: prefill {1e3 * prefill:.2f} ms, decode of {steps - 1} steps {1e3 * decode:.2f} ms (medians)"
        )


@click.command()
@click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True)
@click.option("--prompt-len", type=click.IntRange(1), default=64, show_default=True, help="Tokens before step 1.")
@click.option(
    "--steps", type=click.IntRange(2), default=8, show_default=True, help="Forward passes, the prompt's included."
)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Measured runs of each path.")
@click.option("--dtype", default="auto", show_default=True, help="auto (as stored), bfloat16, float16 or float32.")
@cli.model_option
@cli.out_option
def main(device: str, prompt_len: int, steps: int, repeats: int, dtype: str, model: Path, out: Path | None) -> None:
    """Print counts, errors and times, and one JSON line that scripts/e2e/analyze.py cache reads."""
    device = numerics.settle_device(device)
    block_id = out.stem if out else "cached-forward"
    titles = {"title_en": "Forward passes with and without a cache", "title_zh": "有缓存与无缓存的前向计算"}
    with Recording(block_id, **titles, out=out, sources=[cached_forward]) as rec:
        rec.engine, rec.model, rec.device = ENGINE, describe_model(model), describe_device(device)
        loaded = numerics.load_reference(model, device, dtype)
        check_length(model, loaded, prompt_len + steps)
        used = str(loaded.dtype).removeprefix("torch.")
        cli.announce(engine="transformers", device=device, attention="eager", dtype=used)
        rec.config = {"prompt_len": prompt_len, "steps": steps, "repeats": repeats, "dtype": used, "device": device}
        rec.result = run_both(loaded, prompt_ids(prompt_len), steps, repeats)
        rec.volatile += ["seconds.*", "max_abs_logit_error", "relative_l2_logit_error", "same_top1_steps", "tokens"]
        say(rec.result, steps)
        facts = {"engine": rec.engine, "model": rec.model, "device": rec.device, "config": rec.config}
        finite = math.isfinite(rec.result["max_abs_logit_error"])
        shown = rec.result if finite else rec.result | dict.fromkeys(("max_abs_logit_error", "relative_l2_logit_error"))
        click.echo(json.dumps({"event": "cached_forward"} | facts | shown, separators=(",", ":")))
        verdict = Verdict.COLLECTED if finite else Verdict.FAIL
        rec.finish(verdict, EvidenceType.GPU if device == "cuda" else EvidenceType.CPU_ENGINE)


def check_length(model: Path, loaded: Any, length: int) -> None:
    limit = loaded.config.max_position_embeddings
    if length > limit:
        raise LabError(f"--prompt-len + --steps = {length} exceeds the model's {limit} positions; lower one of them")
    assert model_dims(model).vocab_size > max(prompt_ids(200))


if __name__ == "__main__":
    main()
