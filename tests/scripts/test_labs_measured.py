"""Labs 02 and 04: counts that hold everywhere, times that are only measured, and logs that analyze.py reads."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from engine_scripts import ROOT, block_of, load_script, run

from nanolab import sources
from nanolab.sources import SamplingSpec

cached = load_script("labs/02_cached_forward.py")
benchmark = load_script("labs/04_benchmark_engine.py")
analyze = load_script("e2e/analyze.py")

SMALL = ["--seqs", "3", "--max-num-seqs", "4", "--input-len", "12", "--output-len", "4", "--repeats", "2"]


def saved(result: Result, path: Path) -> Path:
    path.write_text(result.stdout, "utf-8")
    return path


# ---- lab 02 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "counts"), [([], (540, 71)), (["--prompt-len", "10", "--steps", "3"], (33, 12))])
def test_cached_forward(tiny_model: Path, tmp_path: Path, options: list[str], counts: tuple[int, int]) -> None:
    arguments = ["--device", "cpu", "--dtype", "float32", "--repeats", "1", "--model", tiny_model, *options]
    result, block = block_of(cached, tmp_path / "c.json", *arguments)
    assert block["check"] == "COLLECTED", result.output
    facts = block["result"]
    assert (facts["positions_without_cache"], facts["positions_with_cache"]) == counts
    steps = len(facts["tokens"])
    assert facts["same_top1_steps"] == steps
    assert 0 <= facts["max_abs_logit_error"] < 1e-3
    assert f"without cache {counts[0]}, with {counts[1]}" in result.stdout
    for path in ("without_cache", "with_cache"):
        seconds = facts["seconds"][path]
        assert len(seconds["prefill_seconds"]) == 1
        assert min(seconds["median_prefill_seconds"], seconds["median_decode_seconds"]) > 0
    check, _ = block_of(analyze, tmp_path / "check.json", "cache", "--log", saved(result, tmp_path / "c.log"))
    assert check.exit_code == 0, check.output


def test_a_run_without_a_decode_step_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    result = run(cached, "--steps", "1", "--model", tiny_model, "--out", out)
    assert result.exit_code == 2
    assert "Invalid value for '--steps': 1 is not in the range x>=2" in result.output and not out.exists()


def test_both_paths_are_given_one_trajectory(tiny_model: Path) -> None:
    from nanolab import numerics
    from nanolab.numerics import cached_forward

    model = numerics.load_reference(tiny_model, "cpu", "float32")
    free = cached_forward.generate(model, [40, 50, 60], 4, cached=False)
    assert free.tokens == [int(row.argmax()) for row in free.logits]
    assert free.input_positions == [3, 4, 5, 6]
    given = [99, 98, 97, 96]
    forced = [cached_forward.generate(model, [40, 50, 60], 4, cached=c, given=given) for c in (False, True)]
    assert [run_.tokens for run_ in forced] == [given, given]
    assert forced[1].input_positions == [3, 1, 1, 1]
    facts = cached_forward.compare_generations(*forced)
    assert facts["max_abs_logit_error"] < 1e-3
    assert (free.logits[-1] != forced[0].logits[-1]).any(), "another trajectory gives other logits"


def test_a_result_that_is_not_finite_fails(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cached.run_both

    def spoiled(*arguments: Any) -> dict[str, Any]:
        return {**own(*arguments), "max_abs_logit_error": math.nan}

    monkeypatch.setattr(cached, "run_both", spoiled)
    arguments = ["--device", "cpu", "--prompt-len", "4", "--steps", "2", "--repeats", "1", "--model", tiny_model]
    result, block = block_of(cached, tmp_path / "c.json", *arguments)
    assert block["check"] == "FAIL"
    check = run(analyze, "cache", "--log", saved(result, tmp_path / "c.log"))
    assert check.exit_code == 1


def test_a_prompt_beyond_the_model_is_refused(tiny_model: Path) -> None:
    result = run(cached, "--device", "cpu", "--prompt-len", "5000", "--model", tiny_model)
    assert result.exit_code == 2
    assert "5008 exceeds the model's 4096 positions" in result.output


# ---- lab 04 ---------------------------------------------------------------------------------------------


def test_benchmark_on_cpu(tiny_model: Path, tmp_path: Path) -> None:
    result, block = block_of(benchmark, tmp_path / "b.json", "--eager", *SMALL, "--model", tiny_model)
    assert block["check"] == "COLLECTED", result.output
    assert block["evidence"] == "cpu-engine"
    facts = block["result"]
    assert [one["output_tokens"] for one in facts["runs"]] == [12, 12]
    rates = [one["output_tokens"] / one["seconds"] for one in facts["runs"]]
    assert facts["median_tokens_per_second"] == pytest.approx(sum(rates) / 2)
    assert facts["init_seconds"] > 0
    assert facts["kv_blocks"] > 0
    assert facts["warm_up_runs"] == 2
    event = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))
    assert event["event"] == "benchmark"
    assert event["config"]["eager"] is True
    assert event["runs"] == facts["runs"]
    for name in ("init_seconds", "median_tokens_per_second", "kv_blocks"):
        assert f"\n{name} " in "\n" + result.stdout


def test_cpu_never_claims_to_replay_graphs(tiny_model: Path, tmp_path: Path) -> None:
    logs = []
    for name, options in (("eager", ["--eager"]), ("graph", [])):
        result, block = block_of(benchmark, tmp_path / f"{name}.json", *options, *SMALL, "--model", tiny_model)
        assert block["config"]["eager"] is True
        logs.append(saved(result, tmp_path / f"{name}.log"))
    assert block["notes"] == ["CUDA graphs need a CUDA device: this run was eager"]
    check = run(analyze, "compare", "--variable", "eager", "--log", logs[0], "--other", logs[1])
    assert check.exit_code == 4
    assert check.stdout.splitlines()[-1] == "PENDING"


def test_compare_of_two_real_logs(tiny_model: Path, tmp_path: Path) -> None:
    """One setting changed on CPU: the ratio is given, and a second difference is refused."""
    logs = {}
    for dtype in ("float32", "bfloat16"):
        result = run(benchmark, "--eager", *SMALL, "--dtype", dtype, "--model", tiny_model)
        logs[dtype] = saved(result, tmp_path / f"{dtype}.log")
    arguments = ("compare", "--variable", "dtype", "--log", logs["float32"], "--other", logs["bfloat16"])
    result, block = block_of(analyze, tmp_path / "r.json", *arguments)
    assert block["check"] == "PASS", result.output
    assert block["result"]["throughput_ratio"] > 0
    assert "throughput_ratio=" in result.stdout
    result = run(analyze, "compare", "--variable", "seqs", "--log", logs["float32"], "--other", logs["bfloat16"])
    assert result.exit_code == 1
    assert "BAD  dtype is the same" in result.stdout


def test_nothing_watches_a_measured_run(tiny_model: Path) -> None:
    """The engine's own schedule() runs, and generate() goes through its public path."""
    with sources.resolve(ROOT / "src").create_engine(tiny_model, enforce_eager=True, max_num_seqs=4) as driver:
        assert "schedule" in vars(driver.engine.scheduler)
        benchmark.unhook(driver)
        assert "schedule" not in vars(driver.engine.scheduler)
        params = benchmark.sampling(driver, 2)
        assert benchmark.measure(driver, 0, 2, 5, params)["output_tokens"] == 4
        model = driver.engine.model_runner.model
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_no_run_finds_the_prefix_of_an_earlier_one() -> None:
    runs = [benchmark.prompts(number, 4, 300) for number in range(5)]
    first_blocks = {tuple(prompt[:256]) for prompts in runs for prompt in prompts}
    assert len(first_blocks) == 20
    assert benchmark.prompts(0, 4, 300) == runs[0]


def test_a_lost_token_fails(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        benchmark, "sampling", lambda driver, n: driver._sampling_params(SamplingSpec(n - 1, ignore_eos=True))
    )
    result, block = block_of(benchmark, tmp_path / "b.json", "--eager", *SMALL, "--model", tiny_model)
    assert block["check"] == "FAIL"
    assert "a run gave 9 output tokens, expected 12" in result.stderr
