"""Reading a profiler trace: which kernel belongs to which step, and what is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nanolab.errors import LabError
from nanolab.gpu_evidence import profile, profile_picture


def span(name: str, category: str, start: float, duration: float, correlation: int = 0) -> dict[str, Any]:
    args = {"correlation": correlation}
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": duration, "pid": 1, "tid": 1, "args": args}


EVENTS = [
    span("step", "user_annotation", 0, 100),
    span("prepare_prefill", "user_annotation", 5, 10),
    span("run_model", "user_annotation", 20, 30),
    span("cudaLaunchKernel", "cuda_runtime", 25, 2, 1),
    span("nvjet_gemm", "kernel", 60, 30, 1),
    span("step", "user_annotation", 100, 50),
    span("prepare_decode", "user_annotation", 101, 4),
    span("cuLaunchKernelEx", "cuda_driver", 110, 2, 2),
    span("cudaStreamSynchronize", "cuda_runtime", 113, 30, 9),
    span("_rope_store_attend_kernel", "kernel", 152, 8, 2),  # runs after the step's range has ended
    span("cudaLaunchKernel", "cuda_runtime", 400, 2, 3),  # between steps: nobody's
    span("other", "kernel", 403, 5, 3),
]


@pytest.fixture
def steps(tmp_path: Path) -> list[profile.ProfiledStep]:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS}), "utf-8")
    return profile.read_trace(path)


def test_a_kernel_belongs_to_the_step_that_launched_it(steps: list[profile.ProfiledStep]) -> None:
    prefill, decode = steps
    assert (prefill.phase, decode.phase) == ("prefill", "decode")
    assert [kernel.name for kernel in prefill.work] == ["nvjet_gemm"]
    assert [kernel.name for kernel in decode.work] == ["_rope_store_attend_kernel"]
    facts = decode.facts()
    assert (facts["launches"], facts["kernels"], facts["kernel_us"]) == (1, 1, 8.0)
    assert facts["by_family_us"] == {"attention": 8.0}
    assert prefill.facts()["busy_share"] == 0.3


def test_without_a_gpu_the_work_is_the_outermost_operators(tmp_path: Path) -> None:
    events = [
        span("step", "user_annotation", 0, 100),
        span("aten::linear", "cpu_op", 10, 20),
        span("aten::mm", "cpu_op", 12, 10),
        span("aten::add", "cpu_op", 40, 5),
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}), "utf-8")
    (step,) = profile.read_trace(tmp_path / "trace.json")
    assert [work.name for work in step.work] == ["aten::linear", "aten::add"]
    assert step.kind == "operators"


def test_overlapping_kernels_count_once_as_busy() -> None:
    step = profile.ProfiledStep(0, profile.Span("step", 0, 10))
    step.work = [profile.Span("a", 0, 4), profile.Span("b", 2, 6), profile.Span("c", 8, 9)]
    assert step.busy_us == 7.0


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_picture_is_whole_and_names_both_phases(steps: list[profile.ProfiledStep], language: str) -> None:
    drawn = profile_picture.draw(profile.typical(steps), language)
    root = ElementTree.fromstring(drawn)
    words = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(word.startswith("decode: 0.05 ms, 1 launches, 1 kernels") for word in words)
    assert any(word.startswith("prefill: 0.10 ms") for word in words)


def test_every_family_of_kernels_has_a_tone() -> None:
    assert {*profile.FAMILIES, "other"} == set(profile_picture.TONE)


def test_the_small_trace_starts_each_step_at_zero(steps: list[profile.ProfiledStep]) -> None:
    small = profile.small_trace(profile.typical(steps).values())
    starts = [event["ts"] for event in small["traceEvents"] if event["ph"] == "X" and event["name"] == "step"]
    assert starts == [0.0, 0.0]


def test_what_is_no_profile_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"traceEvents": []}', "utf-8")
    with pytest.raises(LabError, match="holds no range named step"):
        profile.read_trace(tmp_path / "trace.json")
    with pytest.raises(LabError, match="is no profiler trace"):
        profile.read_trace(tmp_path / "absent.json")
