"""Greedy tokens of two servers: equal, parted at a near tie or different; then rows of log-probabilities."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from serving.live import live_server

from nanolab.errors import LabError
from nanolab.load.agreement import TOLERANCE, Comparison, compare_outputs, compare_rows, rows_of
from nanolab.load.remote import Replica
from nanolab.load.trace import TraceRequest
from nanolab.numerics import SUITES, Collection
from nanolab.numerics.suites import prefix_sha256

from .helpers import trace_request
from .test_other_servers import stand_in

REQUEST = trace_request("r0", output=5)


def answer_with(tokens: list[int], candidates: list[dict[int, float]]) -> Any:
    async def answer(_: int, request: web.Request) -> web.Response:
        body = await request.json()
        assert (body["temperature"], body["ignore_eos"], body["return_token_ids"]) == (0.0, True, True)
        rows = [{f"token_id:{token}": value for token, value in row.items()} for row in candidates]
        return web.json_response({"choices": [{"token_ids": tokens, "logprobs": {"top_logprobs": rows}}]})

    return answer


async def compare(request: TraceRequest, change: Any) -> Comparison:
    """The lab's simulated server beside a stand-in whose answer is `change(the lab's tokens)`."""
    async with live_server() as lab, aiohttp.ClientSession() as http:
        body = {"prompt_token_ids": request.prompt_token_ids, "max_tokens": request.output_length, "ignore_eos": True}
        async with http.post(f"{lab.url}/generate", json=body) as response:
            lines = [line async for line in response.content]
        events = [json.loads(line) for line in lines]
        tokens = [event["token"] for event in events if event["event"] == "token"]
        assert len(tokens) == request.output_length
        theirs, candidates = change(tokens)
        async with stand_in(answer_with(theirs, candidates)) as other:
            found = await compare_outputs(http, Replica(lab.url), Replica(other, model="m"), [request])
    return found[0]


def parted(gap: float | None) -> Any:
    """The third token differs; the lab's is a candidate `gap` behind, or none at all."""

    def change(tokens: list[int]) -> tuple[list[int], list[dict[int, float]]]:
        theirs = [*tokens[:2], tokens[2] + 1, *tokens[3:]]
        rows = [{token: -0.5} for token in theirs]
        if gap is not None:
            rows[2][tokens[2]] = -0.5 - gap
        return theirs, rows

    return change


def test_equal_tokens() -> None:
    one = asyncio.run(compare(REQUEST, lambda tokens: (tokens, [{token: -0.1} for token in tokens])))
    assert (one.verdict(TOLERANCE), one.index, one.tokens) == ("equal", None, 5)


@pytest.mark.parametrize(
    ("gap", "tolerance", "verdict"),
    [(0.0, 0.25, "near tie"), (0.25, 0.25, "near tie"), (0.5, 0.25, "different"), (0.25, 0.001, "different"),
     (None, 0.25, "different")],
)  # fmt: skip
def test_the_first_difference_is_judged_by_its_gap(gap: float | None, tolerance: float, verdict: str) -> None:
    one = asyncio.run(compare(REQUEST, parted(gap)))
    assert (one.index, one.gap, one.verdict(tolerance)) == (2, gap, verdict)
    assert one.other_token == (one.lab_token or 0) + 1


def test_outputs_of_different_length_are_no_comparison() -> None:
    with pytest.raises(LabError, match="5 tokens from the lab, 4 from"):
        asyncio.run(compare(REQUEST, lambda tokens: (tokens[:4], [{token: -0.1} for token in tokens[:4]])))


def test_a_server_without_token_ids_is_named() -> None:
    async def answer(_: int, request: web.Request) -> web.Response:
        return web.json_response({"choices": [{"text": "hello"}]})

    async def main() -> None:
        async with live_server() as lab, stand_in(answer) as other, aiohttp.ClientSession() as http:
            await compare_outputs(http, Replica(lab.url), Replica(other, model="m"), [REQUEST])

    with pytest.raises(LabError, match="returned no token ids"):
        asyncio.run(main())


def collection(logits: Any, spoil: bool = False) -> Collection:
    """The baseline suite's first row with made-up logits."""
    group = SUITES["baseline"].groups[0]
    sha = "0" * 64 if spoil else prefix_sha256(list(group.prompts[0]))
    row = {"group": group.name, "request": "R1", "round": 1, "prefix_sha256": sha}
    block = {"config": {"suite": "baseline"}, "result": {"trajectory": [row]}}
    return Collection("rows", block, np.array([logits], np.float32), None, True)


@pytest.mark.parametrize(("shift", "equal", "ties"), [(0.0, 1, 0), (-0.2, 0, 1), (-3.0, 0, 0)])
def test_log_probabilities_are_compared_by_id(shift: float, equal: int, ties: int) -> None:
    """The other server prefers token 1; the lab gives token 0 the same score, less or much less: `shift` moves 1."""
    logits = [1.0, 1.0 + shift + 1e-3 * (shift == 0), -2.0]
    ours = np.array(logits, np.float64) - np.log(np.exp(logits).sum())
    candidates = {1: float(ours[1]) + 0.1, 2: float(ours[2])}

    async def main() -> dict[str, Any]:
        async with stand_in(answer_with([1], [candidates])) as other, aiohttp.ClientSession() as http:
            return await compare_rows(http, Replica(other, model="m"), collection(logits), 0.25)

    found = asyncio.run(main())
    assert found["max_difference"] == pytest.approx(0.1, abs=1e-5)
    assert (found["rows"], found["candidates"]) == (1, 2)
    assert (found["top1_equal"], found["top1_near_ties"]) == (equal, ties)


def test_rows_of_another_suite_are_refused() -> None:
    with pytest.raises(LabError, match="of an older suite; collect again"):
        list(rows_of(collection([0.0, 1.0], spoil=True)))


def test_the_program_wants_the_lab_on_the_lab_side(tmp_path: Path) -> None:
    """Two stand-ins: the first has vLLM's /health, so it is not the lab's server."""
    import sys

    from nanolab.evidence import repo_root

    sys.path.insert(0, str(repo_root() / "scripts" / "practice"))
    try:
        from compare_outputs import _ask  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)

    async def main() -> None:
        async with stand_in(answer_with([], [])) as one, stand_in(answer_with([], [])) as two:
            await _ask(one, two, [REQUEST], None, 0.25)

    with pytest.raises(LabError, match="not the lab's server; give vLLM's URL as --other"):
        asyncio.run(main())
