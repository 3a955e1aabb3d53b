"""logits_check.py as a learner runs it: collect twice, compare, and every planted fault is caught."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_scripts import block_of, load_script, run

from nanolab import evidence, numerics
from nanolab.evidence import Recording
from nanolab.models import make_tiny
from nanolab.numerics.suites import IDENTITY
from nanolab.verdicts import EvidenceType

logits_check = load_script("e2e/logits_check.py")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a CUDA device")


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def pair(request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with nano.{json,npz} and hf.{json,npz} of one dtype."""
    place = tmp_path_factory.mktemp(f"pair-{request.param}")
    for backend in ("nano", "hf"):
        arguments = (
            "collect",
            "--backend",
            backend,
            "--dtype",
            request.param,
            "--device",
            "cpu",
            "--model",
            tiny_model,
        )
        result, block = block_of(logits_check, place / backend, *arguments)
        assert block["check"] == "COLLECTED", result.output
        assert "rows=15 of 15" in result.stdout
        assert "None" not in result.stdout
        assert ("no decode step in group D" in result.stdout) == (backend == "nano")
    return place


def compare(place: Path, *options: str | Path, lhs: str = "nano", rhs: str = "hf") -> tuple[Any, dict[str, Any]]:
    out = place / "check.json"
    out.unlink(missing_ok=True)
    return block_of(logits_check, out, "compare", "--lhs", place / lhs, "--rhs", place / rhs, *options)


def test_nano_agrees_with_transformers(pair: Path) -> None:
    result, block = compare(pair, "--max-abs", "0.5", "--rel-l2", "0.02")
    assert block["check"] == "PASS", result.output
    facts = block["result"]
    assert (facts["rows"], facts["rows_within"], facts["top1_agree"], facts["first_abnormal"]) == (15, 15, 15, None)
    assert 0 < facts["worst"]["max_abs"]["value"] <= 0.5
    assert 0 < facts["worst"]["rel_l2"]["value"] <= 0.02
    assert block["evidence"] == "cpu-engine"
    assert block["engine"]["kind"] == "bundled"
    assert (block["config"]["lhs"]["backend"], block["config"]["rhs"]["backend"]) == ("nano", "hf")
    assert "first abnormal row: none" in result.stdout


def test_what_a_collection_holds(pair: Path) -> None:
    nano, hf = (json.loads((pair / f"{name}.json").read_text("utf-8")) for name in ("nano", "hf"))
    assert nano["result"]["runner"]["path"] == "nanoengine/engine/model_runner.py"
    assert len(nano["result"]["runner"]["sha256"]) == 64
    assert nano["model"] == hf["model"]
    assert nano["config"]["dtype"] == hf["config"]["dtype"]
    assert hf["config"]["attn_implementation"] == "eager"
    assert hf["config"]["use_cache"] is False
    assert hf["engine"]["kind"] == "transformers"
    rows = zip(nano["result"]["trajectory"], hf["result"]["trajectory"], strict=True)
    assert all({name: ours[name] for name in IDENTITY} == theirs for ours, theirs in rows)
    with np.load(pair / "nano.npz") as arrays:
        assert arrays["logits"].shape == (15, 512)
        assert arrays["logits"].dtype == np.float32


def test_prefix_may_be_given_as_json(pair: Path) -> None:
    _, block = compare(pair, lhs="nano.json", rhs="hf.json")
    assert block["check"] == "PASS"


def test_tight_thresholds_end_in_review(pair: Path) -> None:
    result, block = compare(pair, "--max-abs", "0", "--rel-l2", "0")
    assert block["check"] == "REVIEW"
    assert result.exit_code == 3
    assert block["result"]["first_abnormal"] in result.stdout
    assert "LOOK row" in result.stderr


# ---- planted faults -------------------------------------------------------------------------------------


@pytest.fixture
def copied(pair: Path, tmp_path: Path) -> Path:
    for path in pair.iterdir():
        shutil.copy(path, tmp_path / path.name)
    return tmp_path


def rewrite(place: Path, name: str, change: Any) -> None:
    """Change rows and keep the hash right, as a wrong collector would."""
    with np.load(place / f"{name}.npz") as arrays:
        held = dict(arrays)
    block = json.loads((place / f"{name}.json").read_text("utf-8"))
    change(held, block)
    np.savez(place / f"{name}.npz", **held)
    block["result"]["npz_sha256"] = hashlib.sha256((place / f"{name}.npz").read_bytes()).hexdigest()
    (place / f"{name}.json").write_text(json.dumps(block), "utf-8")


def missing_row(held: dict[str, Any], block: dict[str, Any]) -> None:
    held["logits"] = held["logits"][:-1]
    block["result"]["trajectory"].pop()


def wrong_hash(held: dict[str, Any], block: dict[str, Any]) -> None:
    block["model"]["weights_sha256"] = "0" * 64


def a_nan(held: dict[str, Any], block: dict[str, Any]) -> None:
    held["logits"][5, 100] = np.nan


def swapped_rows(held: dict[str, Any], block: dict[str, Any]) -> None:
    rows = block["result"]["trajectory"]
    rows[0], rows[1] = rows[1], rows[0]


@pytest.mark.parametrize("change", [missing_row, wrong_hash, a_nan, swapped_rows])
def test_a_planted_fault_fails(copied: Path, change: Any) -> None:
    rewrite(copied, "nano", change)
    result, block = compare(copied)
    assert block["check"] == "FAIL", result.output
    assert "BAD  " in result.stderr


def test_rows_of_another_run_fail(copied: Path) -> None:
    shutil.copy(copied / "hf.npz", copied / "nano.npz")
    result, block = compare(copied)
    assert block["check"] == "FAIL"
    assert "nano: PREFIX.npz is not the file its block was written with" in result.stderr


def test_a_perturbed_weight_fails(pair: Path, tiny_model: Path, tmp_path: Path) -> None:
    """One tensor scaled: other hash, so FAIL, and the rows are beyond the thresholds as well."""
    from safetensors.torch import load_file, save_file

    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (path,) = model.glob("*.safetensors")
    tensors = load_file(path)
    tensors["model.layers.1.self_attn.o_proj.weight"] *= 1.5
    save_file(tensors, path, metadata={"format": "pt"})
    dtype = json.loads((pair / "hf.json").read_text("utf-8"))["config"]["dtype"]
    arguments = ("collect", "--backend", "nano", "--dtype", dtype, "--device", "cpu", "--model", model)
    block_of(logits_check, tmp_path / "nano", *arguments)
    for name in ("hf.json", "hf.npz"):
        shutil.copy(pair / name, tmp_path / name)
    result, block = compare(tmp_path)
    assert block["check"] == "FAIL"
    assert "model weights_sha256 differs" in result.stderr
    assert block["result"]["rows_within"] < 15


def test_another_dtype_fails(tiny_model: Path, pair: Path, tmp_path: Path) -> None:
    dtype = json.loads((pair / "hf.json").read_text("utf-8"))["config"]["dtype"]
    other = {"float32": "bfloat16", "bfloat16": "float32"}[dtype]
    arguments = ("collect", "--backend", "hf", "--dtype", other, "--device", "cpu", "--model", tiny_model)
    block_of(logits_check, tmp_path / "hf", *arguments)
    for name in ("nano.json", "nano.npz"):
        shutil.copy(pair / name, tmp_path / name)
    _, block = compare(tmp_path)
    assert block["check"] == "FAIL"


# ---- graph suite and prerequisites ----------------------------------------------------------------------


def test_graph_suite_eagerly_on_cpu(tiny_model: Path, tmp_path: Path) -> None:
    arguments = ("collect", "--backend", "nano", "--execution", "eager", "--suite", "graph", "--device", "cpu")
    for name in ("one", "two"):
        result, block = block_of(logits_check, tmp_path / name, *arguments, "--model", tiny_model)
        assert block["check"] == "COLLECTED"
        assert "rows=126 of 126" in result.stdout
        assert set(block["result"]["routes"].values()) == {"eager"}
    result, block = compare(tmp_path, "--kv-max-abs", "0.1", lhs="one", rhs="two")
    assert block["check"] == "PASS", result.output
    assert block["result"]["rows"] == 126
    assert block["result"]["kv"]["rows"] == 126
    assert all(block["result"]["routes"].values())


@without_gpu
@pytest.mark.parametrize("extra", [[], ["--expect-uncovered"]])
def test_graph_execution_without_a_gpu_is_pending(tiny_model: Path, tmp_path: Path, extra: list[str]) -> None:
    arguments = ["collect", "--backend", "nano", "--execution", "graph", "--suite", "graph", *extra]
    result = run(logits_check, *arguments, "--model", tiny_model, "--out", tmp_path / "g")
    assert result.exit_code == 4
    assert result.stdout.splitlines()[-1] == "PENDING"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--backend", "hf", "--execution", "graph"],
        ["--backend", "nano", "--expect-uncovered"],
        ["--backend", "hf", "--suite", "graph", "--expect-uncovered"],
    ],
)
def test_impossible_choices_are_usage_errors(tiny_model: Path, tmp_path: Path, arguments: list[str]) -> None:
    result = run(logits_check, "collect", *arguments, "--model", tiny_model, "--out", tmp_path / "x")
    assert result.exit_code == 2


def test_a_missing_collection_names_the_command(tmp_path: Path) -> None:
    result = run(logits_check, "compare", "--lhs", tmp_path / "a", "--rhs", tmp_path / "b")
    assert result.exit_code == 2
    assert "logits_check.py collect" in result.output


def test_npz_without_rows_is_refused(copied: Path) -> None:
    (copied / "nano.npz").write_bytes(b"not a zip")
    result = run(logits_check, "compare", "--lhs", copied / "nano", "--rhs", copied / "hf")
    assert result.exit_code == 2
    assert "holds no logit rows" in result.output


def finish_uncovered(out: Path, fault: numerics.FaultSeen) -> dict[str, Any]:
    """The block of a red run that saw `fault`."""
    rec = Recording("graph-before", title_en="x", title_zh="x", out=out, sources=[numerics])
    with rec:
        rec.engine = {"kind": "working-copy"}
        run_seen = numerics.ForcedRun(fault=fault)
        logits_check.finish_uncovered(rec, run_seen, numerics.SUITES["graph"], EvidenceType.CPU_ENGINE)
    return evidence.load(out)


def test_the_red_run_passes_only_for_the_expected_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = finish_uncovered(tmp_path / "a.json", numerics.FaultSeen("StopIteration", "", "17", "decode", 17))
    assert block["check"] == "PASS"
    assert block["result"]["expected_failure"] is True
    assert "expected_failure=true\nPASS\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        finish_uncovered(tmp_path / "b.json", numerics.FaultSeen("RuntimeError", "boom", "17", "decode", 17))
    assert evidence.load(tmp_path / "b.json")["result"]["expected_failure"] is False
    assert "expected_failure=false\nFAIL\n" in capsys.readouterr().out


def test_a_teaching_model_with_another_seed_is_another_experiment(pair: Path, tmp_path: Path) -> None:
    other = make_tiny(tmp_path / "other", seed=1)
    dtype = json.loads((pair / "hf.json").read_text("utf-8"))["config"]["dtype"]
    arguments = ("collect", "--backend", "hf", "--dtype", dtype, "--device", "cpu", "--model", other)
    block_of(logits_check, tmp_path / "hf", *arguments)
    for name in ("nano.json", "nano.npz"):
        shutil.copy(pair / name, tmp_path / name)
    _, block = compare(tmp_path)
    assert block["check"] == "FAIL"
    assert block["result"]["rows_within"] == 0
