"""Do two servers compute the same thing? Greedy tokens of the same prompts, then log-probabilities, row by row.

Requests go one at a time, so that no batch decides what is rounded how. Where outputs differ, the first different
token is judged at a prefix that both share: how far apart were the two choices in the other server's own
log-probabilities? Two bfloat16 models may part at a near tie; what comes after it are different questions. In
float32 rounding is too small to part them: there every token must be equal.

The other server must return token ids and the candidates' log-probabilities (`return_token_ids`, `logprobs`), as vLLM
does. The lab's server gives ids; its log-probabilities come from rows that `logits_check.py collect` wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
import msgspec
import numpy as np

from nanolab.errors import LabError
from nanolab.load.remote import Replica
from nanolab.load.trace import TraceRequest
from nanolab.numerics import SUITES, Collection
from nanolab.numerics.suites import prefix_sha256

__all__ = ["TOLERANCE", "Comparison", "compare_outputs", "compare_rows", "rows_of"]

# In nats, for bfloat16: best logits between 16 and 32 lie on steps of 0.125, and each of two may be one step off.
TOLERANCE = 0.25
CANDIDATES = 20  # vLLM's own limit (--max-logprobs)


@dataclass(frozen=True)
class Comparison:
    """One request. `index` is the first different output token; the rest is None when all are equal."""

    request_id: str
    prompt_tokens: int
    tokens: int  # of the shorter output
    index: int | None = None
    lab_token: int | None = None
    other_token: int | None = None
    gap: float | None = None  # other's log p(other's token) - log p(lab's token), same prefix; None: not a candidate

    def verdict(self, tolerance: float) -> str:
        if self.index is None:
            return "equal"
        return "near tie" if self.gap is not None and self.gap <= tolerance else "different"

    def facts(self, tolerance: float) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict(tolerance)}


async def compare_outputs(
    http: aiohttp.ClientSession, lab: Replica, other: Replica, requests: Sequence[TraceRequest]
) -> list[Comparison]:
    return [await _compare(http, lab, other, request) for request in requests]


async def _compare(http: aiohttp.ClientSession, lab: Replica, other: Replica, request: TraceRequest) -> Comparison:
    prompt, limit = request.prompt_token_ids, request.output_length
    ours = await _lab_ids(http, lab, prompt, limit)
    theirs, candidates = await _other_ids(http, other, prompt, limit, 5)
    tokens = min(len(ours), len(theirs))
    base = Comparison(request.request_id, len(prompt), tokens)
    index = next((at for at in range(tokens) if ours[at] != theirs[at]), None)
    if index is None:
        if len(ours) != len(theirs):
            raise LabError(f"{request.request_id}: {len(ours)} tokens from the lab, {len(theirs)} from {other.url}")
        return base
    seen = candidates[index]
    gap = round(seen[theirs[index]] - seen[ours[index]], 4) if ours[index] in seen else None
    return Comparison(base.request_id, base.prompt_tokens, tokens, index, ours[index], theirs[index], gap)


async def _lab_ids(http: aiohttp.ClientSession, lab: Replica, prompt: list[int], limit: int) -> list[int]:
    body = {"prompt_token_ids": prompt, "max_tokens": limit, "ignore_eos": True, "temperature": 0.0}
    lines = (await _post(http, f"{lab.url}/generate", body)).splitlines()
    return [event["token"] for line in lines if (event := msgspec.json.decode(line))["event"] == "token"]


async def _other_ids(
    http: aiohttp.ClientSession, other: Replica, prompt: list[int], limit: int, candidates: int
) -> tuple[list[int], list[dict[int, float]]]:
    """(token ids, at each of them the candidates' log-probabilities by id)"""
    body = {
        "model": other.model,
        "prompt": prompt,
        "max_tokens": limit,
        "temperature": 0.0,
        "ignore_eos": True,
        "logprobs": candidates,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    answer = msgspec.json.decode(await _post(http, f"{other.url}/v1/completions", body))
    try:
        choice = answer["choices"][0]
        rows = choice["logprobs"]["top_logprobs"]
        parsed = [{int(key.removeprefix("token_id:")): float(value) for key, value in row.items()} for row in rows]
        return [int(token) for token in choice["token_ids"]], parsed
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise LabError(
            f"{other.url} returned no token ids with log-probabilities ({error!r}); vLLM does since 0.10.2"
        ) from error


async def _post(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> bytes:
    async with http.post(url, json=body) as response:
        data = await response.read()
        if response.status != 200:
            raise LabError(f"{url} answered HTTP {response.status}: {data[:200].decode(errors='replace')}")
        return data


# ---- log-probabilities -----------------------------------------------------------------------------------


def rows_of(collection: Collection) -> Iterator[tuple[list[int], dict[str, Any], Any]]:
    """(input ids, identity, logits) of each row of a collection, its inputs rebuilt from the suite and checked."""
    name = collection.block["config"].get("suite", "baseline")
    groups = {group.name: group for group in SUITES[name].groups}
    for row, logits in zip(collection.trajectory, collection.logits, strict=True):
        group, request = groups[row["group"]], int(row["request"][1:]) - 1
        prefix = [*group.prompts[request], *group.forced[request][: row["round"] - 1]]
        if prefix_sha256(prefix) != row["prefix_sha256"]:
            raise LabError(
                f"row {row['group']} {row['request']} round {row['round']} is of an older suite; collect again"
            )
        yield prefix, row, logits


async def compare_rows(
    http: aiohttp.ClientSession, other: Replica, collection: Collection, tolerance: float
) -> dict[str, Any]:
    """The other server's best candidates after each row's input, beside the same ids in the lab's softmax."""
    differences: list[float] = []
    top_equal = ties = rows = 0
    for prefix, _, logits in rows_of(collection):
        _, candidates = await _other_ids(http, other, prefix, 1, CANDIDATES)
        ours = logits.astype(np.float64)
        ours = ours - ours.max() - np.log(np.exp(ours - ours.max()).sum())
        theirs = candidates[0]
        differences += [abs(float(ours[token]) - value) for token, value in theirs.items()]
        best = max(theirs, key=lambda token: theirs[token])
        rows += 1
        top_equal += int(best == int(ours.argmax()))
        ties += int(best != int(ours.argmax()) and float(ours.max() - ours[best]) <= tolerance)
    return {
        "rows": rows,
        "candidates": len(differences),
        "max_difference": round(max(differences), 6),
        "mean_difference": round(float(np.mean(differences)), 6),
        "top1_equal": top_equal,
        "top1_near_ties": ties,
    }
