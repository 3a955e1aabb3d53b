"""Correctness first: does another server (vLLM) give the lab's tokens for the same prompts? (section 6.4)

run.py serve … --port 8801                  # one terminal: the lab's server
vllm serve "$MODEL_DIR" … --port 8000       # another: the same model directory
compare_outputs.py --lab http://127.0.0.1:8801 --other http://127.0.0.1:8000 --trace workloads/mixed.jsonl --out FILE
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from nanolab import cli, numerics
from nanolab.errors import LabError
from nanolab.evidence import Recording
from nanolab.load import agreement
from nanolab.load.remote import Replica, connect
from nanolab.load.trace import read_trace
from nanolab.verdicts import EvidenceType, Verdict

TOLERANCE = (
    0.25  # largest difference of two log-probabilities: a starting value, to be calibrated on repeated baselines
)

MARKS = {"equal": "GOOD", "near tie": "NEAR", "different": "BAD "}


@click.command()
@click.option("--lab", "lab_url", required=True, help="URL of the lab's server.")
@click.option("--other", "other_url", required=True, help="URL of the other server (vLLM).")
@click.option("--trace", type=click.Path(path_type=Path), required=True, help="Whose prompts and lengths are used.")
@click.option(
    "--rows", type=click.Path(path_type=Path), help="PREFIX of `logits_check.py collect`: compare logits too."
)
@click.option(
    "--tolerance", default=agreement.TOLERANCE, show_default=True,
    help="Nats: a near tie's gap, and two log-probabilities' difference, at most. The default is for bfloat16.",
)  # fmt: skip
@click.option("--limit", type=int, help="Requests at most.")
@cli.out_option
def main(
    lab_url: str, other_url: str, trace: Path, rows: Path | None, tolerance: float, limit: int | None, out: Path | None
) -> None:  # fmt: skip
    """PASS: all greedy tokens equal. REVIEW: outputs part at a near tie. FAIL: they part elsewhere."""
    with Recording(
        out.stem if out else "outputs",
        title_en="Greedy tokens of two servers, same model and prompts",
        title_zh="同一模型、同样的提示：两个服务的贪心 token",
        out=out,
        sources=[agreement],
    ) as rec:
        requests = read_trace(trace).requests[:limit]
        collection = None if rows is None else numerics.read_collection(rows)
        replicas, compared, scores = asyncio.run(_ask(lab_url, other_url, requests, collection, tolerance))
        _describe(rec, replicas)
        verdicts = [one.verdict(tolerance) for one in compared]
        counts = {name: verdicts.count(name) for name in ("equal", "near tie", "different")}
        rec.config = {"trace": trace.name, "tolerance": tolerance}
        rec.result = {
            "requests": len(compared),
            "tokens": sum(one.tokens for one in compared),
            "equal": counts["equal"],
            "near_ties": counts["near tie"],
            "different": counts["different"],
            "outputs": [one.facts(tolerance) for one in compared],
            "logprobs": scores,
        }
        for one in compared:
            click.echo(_line(one, one.verdict(tolerance)))
        if scores is not None:
            click.echo(f"logprobs: {scores}")
        rec.finish(_verdict(counts, scores, tolerance), _evidence(replicas))


async def _ask(
    lab_url: str, other_url: str, requests: Any, collection: Any, tolerance: float
) -> tuple[list[Replica], Any, Any]:
    async with connect([lab_url], "native") as (http, labs), connect([other_url], "openai") as (_, others):
        lab, other = labs[0], others[0]
        if not lab.revealed.get("worker_id"):
            raise LabError(f"--lab {lab_url} is not the lab's server; give vLLM's URL as --other")
        compared = await agreement.compare_outputs(http, lab, other, requests)
        scores = None if collection is None else await agreement.compare_rows(http, other, collection, tolerance)
        return [lab, other], compared, scores


def _describe(rec: Recording, replicas: list[Replica]) -> None:
    """Both engines; the model only if both show the same files."""
    shown = [replica.revealed.get("runs_on") or {} for replica in replicas]
    rec.engine = {"kind": "several", "engines": [facts.get("engine") for facts in shown]}
    rec.device = shown[0].get("device")
    models = [facts.get("model") for facts in shown]
    rec.model = models[0]
    if None in models:
        rec.notes.append("one server does not show its model directory; that both read the same files is not checked")
    elif models[0] != models[1]:
        raise LabError(f"the servers read different models: {models[0]} and {models[1]}; start both on one directory")


def _line(one: agreement.Comparison, verdict: str) -> str:
    text = f"{MARKS[verdict]} {one.request_id}: {one.prompt_tokens} in, {one.tokens} out"
    if one.index is None:
        return f"{text}, equal"
    gap = "not among its candidates" if one.gap is None else f"{one.gap:.4f} nats apart"
    return f"{text}, {verdict} at output {one.index}: lab {one.lab_token}, other {one.other_token}, {gap}"


def _verdict(counts: dict[str, int], scores: dict[str, Any] | None, tolerance: float) -> Verdict:
    if counts["different"]:
        return Verdict.FAIL
    parted = scores is not None and (
        scores["max_difference"] > tolerance or scores["top1_equal"] + scores["top1_near_ties"] < scores["rows"]
    )
    return Verdict.REVIEW if counts["near tie"] or parted else Verdict.PASS


def _evidence(replicas: list[Replica]) -> EvidenceType:
    kinds = [replica.revealed.get("evidence") for replica in replicas]
    if "cpu-engine" in kinds and None not in kinds:
        return EvidenceType.CPU_ENGINE
    return EvidenceType.GPU if set(kinds) == {"gpu"} else EvidenceType.STATIC


if __name__ == "__main__":
    main()
