"""The shortest end-to-end run: one chat prompt, two tokens. Checks that the path works and counts right, not speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nanolab import cli, sources
from nanolab.cases import walk
from nanolab.evidence import Recording, describe_device
from nanolab.models import chat, chat_text, describe_model
from nanolab.sources import EngineDriver, SamplingSpec
from nanolab.verdicts import EvidenceType, Verdict

QUESTION = "用一句话说明什么是 KV cache。"
OUTPUT_TOKENS = 2


def chat_prompt(tokenizer: Any) -> tuple[str, list[int]]:
    """The question through the model's chat template: text and ids."""
    text = chat_text(tokenizer, [{"role": "user", "content": QUESTION}])
    return text, list(tokenizer.encode(text, add_special_tokens=False))


def run_once(driver: EngineDriver) -> dict[str, Any]:
    """One request from prompt to finish; the facts that the verdict is judged from."""
    text, ids = chat_prompt(driver.tokenizer)
    driver.add(ids, SamplingSpec(max_tokens=OUTPUT_TOKENS, ignore_eos=True))
    finished: list[Any] = []
    while driver.has_work():
        finished += driver.step().finished
    return {
        "results": len(finished),
        "output_tokens": [seq.num_completion_tokens for seq in finished],
        "kv_blocks": driver.num_blocks,
        "free_blocks_after": driver.free_blocks,
        "prompt_text": text,
        "prompt_tokens": len(ids),
        "outputs": [list(seq.completion_token_ids) for seq in finished],
        "text": [driver.tokenizer.decode(list(seq.completion_token_ids)) for seq in finished],
    }


def faults(facts: dict[str, Any]) -> list[str]:
    """Every way in which the run is not 1 result of 2 tokens from a pool with blocks; empty means PASS."""
    wrong = []
    if facts["results"] != 1:
        wrong.append(f"results: saw {facts['results']}, expected 1")
    if facts["output_tokens"] != [OUTPUT_TOKENS]:
        wrong.append(f"output tokens: saw {facts['output_tokens']}, expected [{OUTPUT_TOKENS}]")
    if facts["kv_blocks"] <= 0:
        wrong.append(f"kv_blocks: saw {facts['kv_blocks']}, expected more than 0")
    return wrong


@click.command()
@click.option("--dtype", default="auto", show_default=True, help="auto, bfloat16, float16 or float32.")
@click.option("--attention-backend", default="auto", show_default=True, help="auto, flash_attn, triton or torch.")
@cli.source_option
@cli.model_option
@cli.out_option
def main(dtype: str, attention_backend: str, source: Path | None, model: Path, out: Path | None) -> None:
    """PASS needs exactly 1 result, exactly 2 output tokens and a KV pool."""
    engine = sources.resolve(source)
    block_id = out.stem if out else "setup-smoke"
    with Recording(block_id, title_en="Smoke test", title_zh="冒烟测试", out=out, sources=[chat, walk]) as rec:
        rec.engine, rec.model = engine.describe(), describe_model(model)
        options = walk.ENGINE_OPTIONS | {"dtype": dtype, "attention_backend": attention_backend}
        options |= {"max_num_batched_tokens": 512, "max_num_seqs": 2}
        with engine.create_engine(model, **options) as driver:
            rec.device, rec.config = describe_device(driver.device), driver.describe()
            cli.announce(engine=engine.kind, device=driver.device, attention=driver.attention_backend)
            rec.result = run_once(driver)
            evidence_type = EvidenceType.GPU if driver.device == "cuda" else EvidenceType.CPU_ENGINE
        rec.volatile += ["outputs", "text", "kv_blocks", "free_blocks_after"]
        wrong = faults(rec.result)
        rec.notes += wrong
        for line in wrong:
            click.echo(f"BAD  {line}", err=True)
        for name in ("results", "output_tokens", "kv_blocks", "text"):
            click.echo(f"{name}={rec.result[name]}")
        rec.finish(Verdict.FAIL if wrong else Verdict.PASS, evidence_type)


if __name__ == "__main__":
    main()
