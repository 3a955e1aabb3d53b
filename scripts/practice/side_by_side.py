"""The lab's server and vLLM with the same trace: correctness, then repeats in swapped order, then one report (6.4).

Runs, one after the other, the commands that section 6.4 shows: it prints each one. Needs the lab's environment and,
beside it, vLLM's (`scripts/maintain/vllm_env.sh` makes one for CPU).
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from nanolab import cli, evidence
from nanolab.errors import LabError
from nanolab.evidence import Recording, check_writable, repo_root
from nanolab.load import sidebyside
from nanolab.load.sidebyside import find_vllm, free_port, run_order, running, vllm_command, vllm_environment
from nanolab.models import check_model_dir
from nanolab.report import build, metrics, records
from nanolab.verdicts import EvidenceType, Verdict

SCRIPTS = repo_root() / "scripts"


@dataclass(frozen=True)
class Setup:
    model: Path
    vllm: Path
    trace: Path
    out: Path
    ports: dict[str, int]
    max_model_len: int
    seqs: int
    tokens: int
    start_s: float
    load_average: float  # of the last minute before the first run: a busy host measures itself

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def beside(self, ending: str) -> Path:
        return self.out.with_name(f"{self.out.stem}-{ending}")

    @contextmanager
    def server(self, name: str, run: str, model: Path) -> Iterator[None]:
        if name == "vllm":
            limits = {"max_model_len": self.max_model_len, "seqs": self.seqs, "tokens": self.tokens}
            command = vllm_command(self.vllm, model, self.ports[name], **limits)
            env = vllm_environment(os.environ, self.vllm)
        else:
            command = self.lab_command(run, model)
            env = dict(os.environ)
        _show(command)
        with running(command, self.url(name), self.beside(f"{run}-server.txt"), env, self.start_s):
            yield

    def lab_command(self, run: str, model: Path) -> list[str]:
        return [
            *(sys.executable, str(SCRIPTS / "practice/run.py"), "serve", "--model", str(model)),
            *("--served-model-name", "qwen3-demo", "--port", str(self.ports["lab"])),
            *("--max-model-len", str(self.max_model_len), "--batch-tokens", str(self.tokens)),
            *("--batch-seqs", str(self.seqs), "--eager"),
            *("--out", str(self.beside(f"{run}-server.jsonl"))),
        ]


@click.command()
@cli.model_option
@click.option("--trace", type=click.Path(path_type=Path), required=True, help="Arrival trace (JSONL).")
@click.option(
    "--vllm-env", type=click.Path(path_type=Path), envvar="VLLM_VENV", default=Path(".venv-vllm"), show_default=True,
    help="Virtual environment with vLLM.",
)  # fmt: skip
@click.option(
    "--exact-model", type=click.Path(path_type=Path), help="A float32 model: its greedy tokens must all be equal."
)
@click.option("--repeats", default=3, show_default=True, help="Runs of each server; 0: correctness only.")
@click.option("--lab-port", default=0, show_default=True, help="0: any free port.")
@click.option("--vllm-port", default=0, show_default=True, help="0: any free port.")
@click.option("--max-model-len", default=1024, show_default=True, help="Context of both.")
@click.option("--batch-seqs", "seqs", default=4, show_default=True, help="Sequences in a step at most, of both.")
@click.option("--batch-tokens", "tokens", default=256, show_default=True, help="Token budget of a step, of both.")
@click.option("--start-s", default=300.0, show_default=True, help="A server must be ready within this time.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="FILE.json of the report.")
def main(
    model: Path, trace: Path, vllm_env: Path, exact_model: Path | None, repeats: int, lab_port: int, vllm_port: int,
    max_model_len: int, seqs: int, tokens: int, start_s: float, out: Path,
) -> None:  # fmt: skip
    """Ends with the report's verdict; a run that fails stops the comparison with its own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped too
    check_writable(out)
    if not trace.is_file():
        raise LabError(f"no trace at {trace}; make one with `run.py trace --out {trace}`")
    ports = {"lab": lab_port or free_port(), "vllm": vllm_port or free_port()}
    busy = round(os.getloadavg()[0], 1)
    setup = Setup(model, find_vllm(vllm_env), trace, out, ports, max_model_len, seqs, tokens, start_s, busy)
    check_model_dir(model)
    if exact_model is not None:
        check_model_dir(exact_model)
        check_outputs(setup, exact_model, "exact", "0.001")
    check_outputs(setup, model, "outputs", "0.25")
    order = run_order(repeats)
    logs = [measure(setup, name, repeat) for name, repeat in order]
    if logs:
        inputs = ",".join(str(path) for path in sorted(logs))  # the lab's runs first: it is `before`
        report = setup.beside("report.json")
        _run("practice/run.py", "report", "--inputs", inputs, "--out", str(report), may_review=True)
        conclude_with(setup, report, order)


def conclude_with(setup: Setup, report: Path, order: list[tuple[str, int]]) -> None:
    """The block of the whole comparison; no stronger than its report."""
    with Recording(
        setup.out.stem,
        title_en="The lab's server and vLLM: same trace, same limits, runs in swapped order",
        title_zh="实验服务与 vLLM：同一份到达、同样的限制、交换顺序",
        out=setup.out,
        sources=[sidebyside, build, metrics, records],
    ) as rec:
        block = evidence.load(report)
        rec.engine, rec.model, rec.device = block["engine"], block["model"], block["device"]
        limits = {"max_model_len": setup.max_model_len, "batch_seqs": setup.seqs, "batch_tokens": setup.tokens}
        rec.config = {"trace": setup.trace.name, "repeats": max(repeat for _, repeat in order), **limits}
        rec.config["load_average_before"] = setup.load_average
        rec.result = sidebyside.summarize(block["result"], order)
        rec.volatile, rec.notes = list(rec.result), list(block["notes"])
        for row in rec.result["runs"]:
            click.echo("  ".join(f"{name}={value}" for name, value in row.items()))
        rec.finish(Verdict(block["check"]), EvidenceType(block["evidence"]))


def check_outputs(setup: Setup, model: Path, name: str, tolerance: str) -> None:
    """Correctness first: both servers at once, one request at a time."""
    rows = setup.beside(f"{name}-rows")
    _run("e2e/logits_check.py", "collect", "--backend", "nano", "--model", str(model), "--out", str(rows))
    with setup.server("lab", f"{name}-lab", model), setup.server("vllm", f"{name}-vllm", model):
        _run(
            "practice/compare_outputs.py", "--lab", setup.url("lab"), "--other", setup.url("vllm"),
            "--trace", str(setup.trace), "--rows", str(rows), "--tolerance", tolerance,
            "--out", str(setup.beside(f"{name}.json")), may_review=True,
        )  # fmt: skip


def measure(setup: Setup, name: str, repeat: int) -> Path:
    """A fresh server, warm-ups, the trace; returns the log."""
    log = setup.beside(f"{name}-{repeat}.jsonl")
    with setup.server(name, f"{name}-{repeat}", setup.model):
        _run(
            "practice/run.py", "load", "--api", "openai", "--endpoints", setup.url(name), "--trace", str(setup.trace),
            "--out", str(log), may_review=True,
        )  # fmt: skip
    return log


def _run(script: str, *arguments: str, may_review: bool = False) -> None:
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    _show(command)
    code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    if code and not (may_review and code == 3):
        sys.exit(code)


def _show(command: list[str]) -> None:
    root = str(repo_root()) + "/"
    shown = ["python" if part == sys.executable else part.removeprefix(root) for part in command]
    click.echo(f"+ {shlex.join(shown)}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
