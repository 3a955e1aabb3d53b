"""Compare an engine's logits with those of Transformers, or of the same engine run another way (5.2.5, B.5)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import click

from nanolab import cli, evidence, numerics, observe, sources
from nanolab.errors import LabError, MissingPrerequisite
from nanolab.evidence import Recording, describe_device
from nanolab.models import describe_model
from nanolab.numerics import Paths
from nanolab.verdicts import EvidenceType, Verdict

LARGEST_REL_L2 = 1.0


@click.group()
def main() -> None:
    """Collect whole logit rows along a forced trajectory, then compare two collections; only `compare` judges."""


# ---- collect ---------------------------------------------------------------------------------------------


@main.command()
@click.option("--backend", type=click.Choice(["nano", "hf"]), required=True, help="The engine, or Transformers.")
@click.option(
    "--execution", type=click.Choice(["eager", "graph"]), default=None, help="How the engine decodes [eager]."
)
@click.option("--suite", "suite_name", type=click.Choice(list(numerics.SUITES)), default="baseline", show_default=True)
@click.option(
    "--expect-uncovered", is_flag=True, help="PASS only if a decode batch without a graph raises StopIteration."
)
@click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True)
@click.option("--dtype", default="auto", show_default=True, help="auto (as stored), bfloat16, float16 or float32.")
@click.option("--attention-backend", default="auto", show_default=True, help="auto, flash_attn, triton or torch.")
@click.option("--tp", default=1, show_default=True, help="Ranks (tensor parallelism) of the engine.")
@cli.source_option
@cli.model_option
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="PREFIX", help="Writes PREFIX.json and PREFIX.npz."
)
def collect(
    backend: str, execution: str | None, suite_name: str, expect_uncovered: bool, device: str, dtype: str,
    attention_backend: str, tp: int, source: Path | None, model: Path, out: Path,
) -> None:  # fmt: skip
    """Record every row of a suite; COLLECTED says that the rows are complete, nothing about their numbers."""
    check_choices(backend, execution, suite_name, expect_uncovered)
    suite, device, paths = numerics.SUITES[suite_name], numerics.settle_device(device), Paths.of(out)
    execution = execution or "eager"
    if execution == "graph" and device != "cuda":
        raise MissingPrerequisite(
            "--execution graph replays CUDA graphs and needs a CUDA device; `--execution eager` collects on CPU too"
        )
    if backend == "hf":
        collect_hf(suite, device, dtype, model, paths)
        return
    options = suite.engine_options() | {
        "enforce_eager": execution == "eager", "device": device, "dtype": dtype, "attention_backend": attention_backend,
        "tensor_parallel_size": tp,
    }  # fmt: skip
    collect_nano(suite, execution, options, sources.resolve(source), model, paths, expect_uncovered)


def check_choices(backend: str, execution: str | None, suite: str, expect_uncovered: bool) -> None:
    if backend == "hf" and execution == "graph":
        raise LabError("--execution graph is the engine's; Transformers runs eagerly: leave it out with --backend hf")
    if expect_uncovered and (backend, execution, suite) != ("nano", "graph", "graph"):
        raise LabError("--expect-uncovered needs --backend nano --execution graph --suite graph")


def recording(paths: Paths, kind: str) -> Recording:
    evidence.check_writable(paths.npz)
    title_zh = {"nano": "引擎的 logits", "hf": "Transformers 的 logits", "uncovered": "缺少的图"}[kind]
    title_en = {"nano": "The engine's logits", "hf": "Logits of Transformers", "uncovered": "The missing graph"}[kind]
    modules = [numerics, observe]
    return Recording(paths.json.stem, title_en=title_en, title_zh=title_zh, out=paths.json, sources=modules)


def collect_nano(
    suite: numerics.Suite, execution: str, options: dict[str, Any], engine: sources.EngineSource, model: Path,
    paths: Paths, expect_uncovered: bool,
) -> None:  # fmt: skip
    with recording(paths, "uncovered" if expect_uncovered else "nano") as rec:
        rec.engine, rec.model = engine.describe(), describe_model(model)
        with engine.create_engine(model, **options) as driver:
            rec.device = describe_device(driver.device)
            rec.config = driver.describe() | {"suite": suite.name, "backend": "nano", "execution": execution}
            cli.announce(
                engine=engine.kind, device=driver.device, attention=driver.attention_backend, execution=execution
            )
            run = numerics.collect_engine(
                driver, suite, keep_kv=suite.name == "graph", stop_at_fault=expect_uncovered, on_group=say_group
            )
            evidence_type = EvidenceType.GPU if driver.device == "cuda" else EvidenceType.CPU_ENGINE
        rec.result["runner"] = describe_runner(engine)
        if expect_uncovered:
            finish_uncovered(rec, run, suite, evidence_type)
        else:
            finish_collection(rec, run, suite, paths, evidence_type)


def collect_hf(suite: numerics.Suite, device: str, dtype: str, model: Path, paths: Paths) -> None:
    with recording(paths, "hf") as rec:
        rec.engine = {"kind": "transformers", "package": "transformers", "commit": None, "patches": []}
        rec.model, rec.device = describe_model(model), describe_device(device)
        reference = numerics.load_reference(model, device, dtype)
        used = str(reference.dtype).removeprefix("torch.")
        cli.announce(engine="transformers", device=device, attention="eager", dtype=used)
        rec.config = {
            "suite": suite.name, "backend": "hf", "execution": "eager", "device": device, "dtype": used,
            "attn_implementation": reference.config._attn_implementation, "use_cache": False,
        }  # fmt: skip
        run = numerics.collect_reference(reference, suite, lambda rows: cli.progress(rows, "rows"))
        finish_collection(rec, run, suite, paths, EvidenceType.GPU if device == "cuda" else EvidenceType.CPU_ENGINE)


def say_group(name: str) -> None:
    click.echo(f"group {name}", err=True)


def describe_runner(engine: sources.EngineSource) -> dict[str, str]:
    """Which ModelRunner was imported, and its bytes."""
    module = engine.module("engine.model_runner")
    assert module.__file__ is not None
    path = Path(module.__file__)
    name = path.relative_to(engine.package_dir.parent).as_posix()
    return {"path": name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def finish_collection(
    rec: Recording, run: numerics.ForcedRun, suite: numerics.Suite, paths: Paths, evidence_type: EvidenceType
) -> None:
    rec.result |= {"expected_rows": suite.rows, "rows": len(run.rows)}
    if rec.config["backend"] == "nano":
        rec.result |= run.facts()
    rec.result |= {"trajectory": run.rows, "npz_sha256": numerics.write_collection(paths.npz, run)}
    rec.volatile.append("npz_sha256")
    click.echo(f"rows={len(run.rows)} of {suite.rows}\nwrote={paths.npz.name}")
    if rec.result.get("buckets"):
        click.echo(f"captured buckets: {rec.result['buckets']}")
    for name, route in rec.result.get("routes", {}).items():
        click.echo(f"decode route of group {name}: {route}" if route else f"no decode step in group {name}")
    rec.finish(Verdict.COLLECTED if len(run.rows) == suite.rows else Verdict.FAIL, evidence_type)


def finish_uncovered(
    rec: Recording, run: numerics.ForcedRun, suite: numerics.Suite, evidence_type: EvidenceType
) -> None:
    seen, line, facts = numerics.judge_uncovered(run, suite)
    rec.result |= facts
    rec.notes.append(line)
    click.echo(f"{line}\nexpected_failure={str(seen).lower()}")
    rec.finish(Verdict.PASS if seen else Verdict.FAIL, evidence_type)


# ---- compare ---------------------------------------------------------------------------------------------


@main.command()
@click.option("--lhs", type=click.Path(path_type=Path), required=True, metavar="PREFIX")
@click.option("--rhs", type=click.Path(path_type=Path), required=True, metavar="PREFIX", help="The reference.")
@click.option(
    "--max-abs", type=click.FloatRange(min=0), default=0.5, show_default=True, help="Largest |lhs - rhs| of a row."
)
@click.option(
    "--rel-l2",
    type=click.FloatRange(0, LARGEST_REL_L2),
    default=0.02,
    show_default=True,
    help="||lhs - rhs|| / ||rhs||.",
)
@click.option(
    "--kv-max-abs", type=click.FloatRange(min=0), default=None, help="Also compare new K and V, layer by layer."
)
@cli.out_option
def compare(lhs: Path, rhs: Path, max_abs: float, rel_l2: float, kv_max_abs: float | None, out: Path | None) -> None:
    """Judge two collections: FAIL if they are not one experiment, REVIEW beyond a threshold, else PASS."""
    block_id = out.stem if out else "engine-logits-check"
    title_en, title_zh = "Logits compared row by row", "逐行比较 logits"
    with Recording(block_id, title_en=title_en, title_zh=title_zh, out=out, sources=[numerics]) as rec:
        left, right = numerics.read_collection(lhs), numerics.read_collection(rhs)
        limits = numerics.Thresholds(max_abs, rel_l2, kv_max_abs)
        judgement = numerics.judge(left, right, limits)
        describe_sides(rec, left, right)
        rec.config |= {"max_abs": max_abs, "rel_l2": rel_l2, "kv_max_abs": kv_max_abs}
        rec.result = judgement.facts | {"faults": judgement.faults, "breaches": judgement.breaches}
        rec.volatile += ["worst.*", "table.*", "kv.*", "breaches"]
        report(judgement)
        rec.finish(judgement.verdict, weakest(left, right))


def describe_sides(rec: Recording, left: numerics.Collection, right: numerics.Collection) -> None:
    """The block speaks of the engine's side; both sides are named in its config."""
    engine_side = right if left.block["config"].get("backend") == "hf" else left
    cpu_side = next((side for side in (left, right) if side.block["device"]["kind"] == "cpu"), engine_side)
    rec.engine, rec.model, rec.device = (
        engine_side.block["engine"],
        engine_side.block["model"],
        cpu_side.block["device"],
    )
    names = ("backend", "execution", "suite", "dtype", "device", "attention_backend")
    for side, collection in (("lhs", left), ("rhs", right)):
        block = collection.block
        rec.config[side] = {name: block["config"].get(name) for name in names} | {
            "id": block["id"], "started_at": block["started_at"], "torch": block["versions"]["torch"],
            "transformers": block["versions"]["transformers"],
        }  # fmt: skip


def weakest(left: numerics.Collection, right: numerics.Collection) -> EvidenceType:
    order = list(EvidenceType)  # from the strongest claim to the weakest
    return max((EvidenceType(side.block["evidence"]) for side in (left, right)), key=order.index)


def report(judgement: numerics.Judgement) -> None:
    facts = judgement.facts
    if "table" in facts:
        click.echo(f"rows={facts['rows']}  within thresholds={facts['rows_within']}  top-1 agree={facts['top1_agree']}")
        for name, worst in facts["worst"].items():
            click.echo(f"worst {name}: {worst['value']:.4g} at {worst['row']}" if worst else f"worst {name}: none")
        click.echo(f"first abnormal row: {facts['first_abnormal'] or 'none'}")
    for name, ran in facts.get("routes", {}).items():
        click.echo(f"route {name}: {str(ran).lower()}")
    if "kv" in facts:
        kv = facts["kv"]
        click.echo(f"new K and V: worst max_abs {kv['worst_max_abs']:.4g}, worst rel_l2 {kv['worst_rel_l2']:.4g}")
    for line in judgement.faults:
        click.echo(f"BAD  {line}", err=True)
    for line in judgement.breaches:
        click.echo(f"LOOK {line}", err=True)


if __name__ == "__main__":
    main()
