"""Record every GPU block of the manual in one run: --list says what each step takes on an H200, and what it needs.

\b
python scripts/maintain/gpu_evidence.py --model models/qwen3-0.6b-shape --upstream nano-vllm
python scripts/maintain/gpu_evidence.py --only quick-A --only bench-engines
python scripts/maintain/gpu_evidence.py --device cpu --quick --model models/tiny     # rehearse it without a GPU

Blocks go to --out-dir; what is already there and current is not run again (--resume: nor what an archive
holds). A step that fails is reported and the rest goes on. Everything that is worth carrying home lies in one archive.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from nanolab.errors import LabError, MissingPrerequisite
from nanolab.evidence import conclude, repo_root
from nanolab.gpu_evidence import Outcome, Run, Settings, Step, archive, build_plan, host, select
from nanolab.models import check_model_dir
from nanolab.verdicts import Verdict

PACK_EVERY_S = 20.0  # the archive is rewritten at most this often, so that a run that is cut off leaves one


@click.command(help=__doc__)
@click.option("--model", type=click.Path(path_type=Path), envvar="MODEL_DIR", help="Model directory (MODEL_DIR).")
@click.option("--out-dir", type=click.Path(path_type=Path), default="runs", show_default=True)
@click.option("--archive", "packed", type=click.Path(path_type=Path), help="Default: OUT_DIR/evidence.tar.gz.")
@click.option("--resume", type=click.Path(path_type=Path, exists=True), help="Archive of an earlier run to go on from.")
@click.option(
    "--upstream", type=click.Path(path_type=Path, exists=True), help="Clone of nano-vLLM, for steps that drive it."
)
@click.option("--budget", default=520.0, show_default=True, help="Seconds; a step that would not fit is not begun.")
@click.option("--only", multiple=True, metavar="STEP", help="This step and what it needs; may be repeated.")
@click.option("--list", "only_list", is_flag=True, help="Print the steps and what they take; run nothing.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--quick", is_flag=True, help="Shorten the work of each step: a rehearsal, not evidence.")
def main(
    model: Path | None, out_dir: Path, packed: Path | None, resume: Path | None, upstream: Path | None, budget: float,
    only: tuple[str, ...], only_list: bool, device: str, quick: bool,
) -> None:  # fmt: skip
    started = time.monotonic()
    rehearsal = device == "cpu" or quick
    plan = select(build_plan(Settings(quick=quick, suffix="-rehearsal" if rehearsal else "-gpu")), only)
    if only_list:
        show_plan(plan)
        return
    found = host.look(device)
    if device == "cuda" and not found.gpus:
        raise MissingPrerequisite("no GPU is visible; `--device cpu --quick --model models/tiny` rehearses the run")
    if model is None:
        raise LabError("no model directory: pass --model or set MODEL_DIR (`source env.sh`)")
    check_model_dir(model)
    out = out_dir.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if resume:
        archive.read_archive(resume, out)
    target = packed.resolve() if packed else out / "evidence.tar.gz"
    scratch = Path(tempfile.mkdtemp(prefix="nanolab-evidence-"))
    try:
        baseline, why = make_baseline(scratch, plan)
        run = Run(
            repo_root(), out, model, found, budget, upstream.resolve() if upstream else None, baseline, why,
            after_step=Packer(out, target), started=started,
        )  # fmt: skip
        click.echo(f"{len(plan)} steps on {len(found.gpus) or 'no'} GPU(s), {budget:.0f} s, blocks in {out_dir}")
        outcomes = run.play(plan)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    finish(outcomes, out, target, time.monotonic() - started)


class Packer:
    """Writes the archive now and then."""

    def __init__(self, directory: Path, target: Path) -> None:
        self.directory, self.target, self.last = directory, target, 0.0

    def __call__(self) -> None:
        if time.monotonic() - self.last >= PACK_EVERY_S:
            archive.write_archive(self.directory, self.target)
            self.last = time.monotonic()


def make_baseline(scratch: Path, plan: list[Step]) -> tuple[Path | None, str]:
    """The engine before the patches, as a learner makes it; or why there is none (git is missing, say)."""
    if not any(step.requires == "baseline" for step in plan):
        return None, "no step needs it"
    directory = scratch / "engine"
    command = [sys.executable, "scripts/e2e/engine_source.py", "init", "--dir", str(directory)]
    environment = host.Host((), False).environment(repo_root(), scratch)
    done = subprocess.run(command, cwd=repo_root(), env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return directory, ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return None, lines[-1] if lines else f"engine_source.py ended with {done.returncode}"


def show_plan(plan: list[Step]) -> None:
    for step in plan:
        needs = [f"{step.gpus} GPUs"] if step.gpus > 1 else []
        needs += [step.requires] if step.requires else []
        click.echo(
            f"{step.seconds:4.0f} s  {step.section:14} {step.name:26} {', '.join(step.blocks) or '(files)'}"
            + (f"  needs {', '.join(needs)}" if needs else "")
        )
    one = [step for step in plan if step.gpus == 1]
    click.echo(f"{len(plan)} steps; {sum(step.seconds for step in one):.0f} s on one H200")


def finish(outcomes: list[Outcome], out: Path, target: Path, seconds: float) -> None:
    """The summary, the archive, and one verdict: FAIL if a step failed, REVIEW or PENDING if something is left."""
    (out / "summary.txt").write_text("".join(f"{outcome.line()}\n" for outcome in outcomes), "utf-8")
    too_large = archive.write_archive(out, target)
    counts = {
        state: sum(outcome.state == state for outcome in outcomes) for state in dict.fromkeys(o.state for o in outcomes)
    }
    click.echo(f"{', '.join(f'{count} {state}' for state, count in counts.items())}; {seconds:.0f} s")
    for outcome in outcomes:
        if outcome.state in ("failed", "not run"):
            click.echo(f"  {outcome.state}: {outcome.step.name}: {outcome.reason}")
    for name in too_large:
        click.echo(f"  left out of the archive, too large: {name}")
    click.echo(f"archive: {target.name}, {target.stat().st_size / 2**20:.1f} MiB")
    conclude(verdict_of(outcomes))


def verdict_of(outcomes: list[Outcome]) -> Verdict:
    checks = {check for outcome in outcomes for check in outcome.checks}
    if any(outcome.state == "failed" for outcome in outcomes) or Verdict.FAIL.value in checks:
        return Verdict.FAIL
    if any(outcome.state in ("not run", "pending") for outcome in outcomes):
        return Verdict.PENDING
    return Verdict.REVIEW if Verdict.REVIEW.value in checks else Verdict.COLLECTED


if __name__ == "__main__":
    main()
