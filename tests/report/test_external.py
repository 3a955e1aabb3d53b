"""Another client's file beside our log: read strictly, compared honestly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nanolab.errors import LabError
from nanolab.report.external import compare_with, read_client
from nanolab.serving.eventlog import read_log

from .helpers import engine_life, write


def guidellm(ttft: float, itl: float, count: int) -> dict[str, Any]:
    def successful(mean: float) -> dict[str, Any]:
        return {"successful": {"mean": mean, "count": count}}

    metrics = {"time_to_first_token_ms": successful(ttft), "inter_token_latency_ms": successful(itl)}
    return {"benchmarks": [{"metrics": metrics}]}


def saved(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "client.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("ttft", "itl", "count", "agrees"),
    [
        (105, 42, 2, True),
        (109, 45, 2, False),  # TPOT 12.5 % away
        (112, 40, 2, False),
        (100, 40, 3, False),  # another number of requests: not the same run
    ],
)
def test_agreement_needs_both_numbers_and_the_same_requests(
    ttft: float, itl: float, count: int, agrees: bool, tmp_path: Path
) -> None:
    events = [*engine_life("a", 0, 1, [100, 140, 180]), *engine_life("b", 500, 501, [600, 640, 680])]
    log = read_log(write(tmp_path / "log.jsonl", events))
    found = compare_with(log, read_client(saved(tmp_path, guidellm(ttft, itl, count)), "guidellm"))
    assert found["report"] == {"requests": 2, "ttft_ms": 100, "tpot_ms": 40}
    assert found["agrees"] is agrees


def test_vllm_results_are_read(tmp_path: Path) -> None:
    path = saved(tmp_path, {"completed": 3, "mean_ttft_ms": 5.5, "mean_tpot_ms": 2.5})
    assert read_client(path, "vllm") == {"requests": 3, "ttft_ms": 5.5, "tpot_ms": 2.5}


def test_the_wrong_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="is not a guidellm result"):
        read_client(saved(tmp_path, {"completed": 3}), "guidellm")
    with pytest.raises(LabError, match="cannot read"):
        read_client(tmp_path / "none.json", "vllm")
