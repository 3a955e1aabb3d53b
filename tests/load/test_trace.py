"""Traces: the committed ones byte for byte, every kind of damage named by file and line, imports that count changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from nanolab.errors import LabError
from nanolab.load.generate import TraceOptions, generate_trace
from nanolab.load.importers import ImportOptions, import_trace
from nanolab.load.trace import TraceRequest, number_prefix_blocks, read_trace, write_trace

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
RANDOM = TraceOptions(requests=48, long_prompt_tokens=512, long_every=6, max_tokens=32)


def options_of(name: str) -> TraceOptions:
    if name == "mixed":
        return TraceOptions()
    if name == "poisson":
        return replace(RANDOM, arrivals="poisson")
    return replace(RANDOM, arrivals="bursty", burst_size=6)


@pytest.mark.parametrize("name", ["mixed", "poisson", "bursty"])
def test_committed_workloads_are_what_the_generator_makes(name: str, tmp_path: Path) -> None:
    write_trace(tmp_path / "again.jsonl", generate_trace(options_of(name)))
    assert (tmp_path / "again.jsonl").read_bytes() == (WORKLOADS / f"{name}.jsonl").read_bytes()


def test_mixed_has_the_numbers_the_manual_states() -> None:
    trace = read_trace(WORKLOADS / "mixed.jsonl", vocab_size=256, max_model_len=1024)
    classes = [request.request_class for request in trace.requests]
    assert (classes.count("long"), classes.count("short")) == (3, 9)
    assert (trace.prompt_tokens, trace.output_tokens) == (2592, 768)
    assert trace.requests[-1].timestamp == 440


def test_a_line_is_a_superset_of_mooncakes() -> None:
    line = msgspec.json.decode((WORKLOADS / "mixed.jsonl").read_bytes().splitlines()[3])
    assert {"timestamp", "input_length", "output_length", "hash_ids"} <= set(line)
    assert len(line["hash_ids"]) == -(-line["input_length"] // 512)
    assert line["class"] == "long"


@pytest.mark.parametrize("arrivals", ["poisson", "bursty"])
def test_random_arrivals_keep_the_mean_rate(arrivals: str) -> None:
    options = TraceOptions(requests=4000, arrivals=arrivals, prompt_tokens=1, long_every=0, interval_ms=10)
    times = [request.timestamp for request in generate_trace(options)]
    assert times == sorted(times)
    assert times[-1] / 3999 == pytest.approx(10, rel=0.08)
    together = sum(a == b for a, b in pairwise(times))
    assert together == 3000 if arrivals == "bursty" else together < 5  # two may fall into one microsecond


def test_another_seed_is_another_trace() -> None:
    assert generate_trace(TraceOptions(seed=1)) != generate_trace(TraceOptions(seed=2))


def test_hash_ids_follow_the_prefix() -> None:
    a, b = [1] * 512, [2] * 512
    assert number_prefix_blocks([a + b, a + a, b + b, a]) == [[0, 1], [0, 2], [3, 4], [0]]


@pytest.mark.parametrize("bad", [{"requests": 0}, {"interval_ms": -1}, {"arrivals": "weekly"}, {"burst_size": 0}])
def test_bad_options_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(LabError):
        TraceOptions(**bad)  # type: ignore[arg-type]


def lines() -> list[dict[str, object]]:
    return [
        msgspec.to_builtins(request)
        for request in generate_trace(TraceOptions(requests=4, prompt_tokens=4, long_every=0))
    ]


def damaged(tmp_path: Path, change: object) -> Path:
    rows = lines()
    change(rows)  # type: ignore[operator]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows[2].update(request_id="r0000"), r"line 3 repeats request_id 'r0000' of line 1"),
        (lambda rows: rows[1].update(prompt_token_ids=[1, 2, 3, 600]), r"line 2: token 600 is outside .* \[0, 512\)"),
        (lambda rows: rows[1].update(prompt_token_ids=[1, 2, 3, -1]), r"line 2: token -1 is outside"),
        (lambda rows: rows[3].update(timestamp=1), r"line 4: timestamp 1.0 is before line 3's"),
        (lambda rows: rows[0].update(timestamp=-5), r"line 1: .*timestamp -5.0 is out of range"),
        (lambda rows: rows[0].update(input_length=9), r"line 1: input_length is 9, prompt_token_ids holds 4"),
        (lambda rows: rows[0].pop("prompt_token_ids"), r"line 1 has no prompt_token_ids; .*--import"),
        (lambda rows: rows[0].update(output_length=0), r"line 1: output_length 0"),
        (lambda rows: rows[0].update(output_length=2000), r"line 1: 2004 tokens .* exceed the context of 1024"),
        (lambda rows: rows[0].update(output_length="many"), r"line 1 is not a trace request: Expected `int`"),
        (lambda rows: rows[0].update(request_id=""), r"line 1: request_id is empty"),
        (lambda rows: rows.clear(), r"holds no request"),
    ],
)
def test_damage_is_named_by_line(change: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=says):
        read_trace(damaged(tmp_path, change), vocab_size=512, max_model_len=1024)


@pytest.mark.parametrize("broken", [b"{", b"\xff\xfe", b"[" * 50_000, b"null", b""])
def test_a_broken_line_is_named(broken: bytes, tmp_path: Path) -> None:
    good = (WORKLOADS / "mixed.jsonl").read_bytes().splitlines()
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join([good[0], broken, good[1]]) + b"\n")
    with pytest.raises(LabError, match="line 2 is not a trace request"):
        read_trace(path)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"make one with `run\.py trace`"):
        read_trace(tmp_path / "none.jsonl")


# ---- imports ---------------------------------------------------------------------------------------------

MOONCAKE = """\
{"timestamp": 1000, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 1500, "input_length": 1050, "output_length": 300, "hash_ids": [46, 47, 99]}
{"timestamp": 1500, "input_length": 20, "output_length": 0, "hash_ids": [7]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01.017335+00:00,2399,6
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,ChatGPT,1087,230,1317,Conversation log
50,GPT-4,417,0,417,Conversation log
"""


def imported(tmp_path: Path, text: str, kind: str, **options: object) -> tuple[list[TraceRequest], object]:
    path = tmp_path / f"{kind}.txt"
    path.write_text(text)
    return import_trace(path, kind, ImportOptions(**options))  # type: ignore[arg-type]


def test_mooncake_keeps_shared_prefixes_and_counts_what_it_changed(tmp_path: Path) -> None:
    requests, report = imported(tmp_path, MOONCAKE, "mooncake", max_prompt_tokens=1040, max_output_tokens=128)
    assert [request.timestamp for request in requests] == [0, 500]
    first, second = (request.prompt_token_ids for request in requests)
    assert first[:1024] == second[:1024]
    assert first[1024:] != second[1024:]
    assert requests[0].hash_ids[:2] == requests[1].hash_ids[:2]
    assert (report.read, report.kept, sum(report.skipped.values())) == (3, 2, 1)  # type: ignore[attr-defined]
    assert (report.clipped_prompts, report.clipped_outputs) == (2, 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("text", "gap"), [(AZURE, 4314.579), (AZURE_2024, 1007.405)])
def test_azure_times(tmp_path: Path, text: str, gap: float) -> None:
    requests, _ = imported(tmp_path, text, "azure")
    assert requests[1].timestamp == pytest.approx(gap, abs=0.002)


def test_burstgpt_skips_failed_requests_and_scales_time(tmp_path: Path) -> None:
    requests, report = imported(tmp_path, BURSTGPT, "burstgpt", time_scale=0.5)
    assert [(request.timestamp, request.output_length) for request in requests] == [(0, 18), (20250, 128)]
    assert [request.request_class for request in requests] == ["short", "long"]
    assert sum(report.skipped.values()) == 1  # type: ignore[attr-defined]


def test_an_import_can_be_replayed(tmp_path: Path) -> None:
    requests, _ = imported(tmp_path, AZURE, "azure", limit=1)
    write_trace(tmp_path / "out.jsonl", requests)
    assert len(read_trace(tmp_path / "out.jsonl", 256, 1024).requests) == 1


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (AZURE, "burstgpt", "has no column Timestamp"),
        (MOONCAKE, "azure", "has no column TIMESTAMP"),
        (BURSTGPT, "mooncake", "line 1 is not a Mooncake request"),
        (AZURE.replace("374", "many"), "azure", "line 2 is not an Azure request"),
        (AZURE.replace("2023-11-16 18:15:46", "yesterday"), "azure", "line 2 is not an Azure request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,3\n", "azure", "too few columns"),
        ("", "mooncake", "no usable request"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, kind: str, says: str) -> None:
    with pytest.raises(LabError, match=says):
        imported(tmp_path, text, kind)
