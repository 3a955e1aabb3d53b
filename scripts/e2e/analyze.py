"""Check the labs' logs against the manual's values: one subcommand for each kind of log (B.1 to B.6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from nanolab import analyze, cli, evidence
from nanolab.analyze import Findings
from nanolab.evidence import Recording
from nanolab.verdicts import EvidenceType, Verdict


@click.group()
def main() -> None:
    """Read a log made by scripts/labs/ and say whether every stated value was seen. A log is never repaired by hand."""


def log_option(name: str = "--log", help: str = "The lab's output.") -> Callable[[Any], Any]:
    return click.option(name, type=click.Path(path_type=Path), required=True, metavar="FILE", help=help)


def conclude(name: str, titles: tuple[str, str], out: Path | None, work: Callable[[], Findings]) -> None:
    """Record the findings as a block, with the table beside it as a TSV of the same stem."""
    table_path = out.with_suffix(".tsv") if out else None
    title_en, title_zh = titles
    block_id = out.stem if out else name
    with Recording(block_id, title_en=title_en, title_zh=title_zh, out=out, sources=[analyze]) as rec:
        findings = work()
        rec.engine, rec.model = findings.run["engine"], findings.run["model"]
        rec.device, rec.config = findings.run["device"], findings.run["config"]
        rec.result = findings.result()
        say(findings)
        if findings.table and table_path:
            evidence.write_atomic(evidence.check_writable(table_path), findings.table.tsv().encode())
            rec.result["table"] = table_path.name
        rec.volatile += ["max_abs_logit_error", "relative_l2_logit_error", "throughput_ratio", "sides.*"]
        rec.volatile.append("rounds.*.after.*.2")  # accepted token ids
        on_gpu = findings.run["device"]["kind"] == "cuda"
        verdict = Verdict.FAIL if findings.wrong else Verdict.PASS
        rec.finish(verdict, EvidenceType.GPU if on_gpu else EvidenceType.CPU_ENGINE)


def say(findings: Findings) -> None:
    for check in findings.checks:
        if check.ok:
            click.echo(f"ok   {check.name}: {shorten(check.seen)}")
        else:
            click.echo(f"BAD  {check.name}: saw {shorten(check.seen)}, expected {shorten(check.expected)}")
    if findings.table:
        click.echo(findings.table.tsv(), nl=False)


def shorten(value: Any, limit: int = 120) -> str:
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


@main.command()
@log_option()
@cli.out_option
def cache(log: Path, out: Path | None) -> None:
    """Log of lab 02: position counts with and without a cache, finite errors."""
    titles = ("Forward passes with and without a cache", "有缓存与无缓存的前向计算")
    conclude("cached-forward-check", titles, out, lambda: analyze.analyze_cache(analyze.read_log(log)))


@main.command()
@log_option()
@cli.out_option
def lifecycle(log: Path, out: Path | None) -> None:
    """Lab 03, case lifecycle: from arrival to reclaim. Also writes a TSV."""
    titles = ("Two requests from arrival to reclaim", "两个请求从到达到回收")
    conclude("lifecycle-check", titles, out, lambda: analyze.analyze_lifecycle(analyze.read_log(log)))


@main.command()
@log_option()
@cli.out_option
def chunk(log: Path, out: Path | None) -> None:
    """Lab 03, case chunk: a prompt in two chunks. Also writes a TSV."""
    titles = ("A prompt in two chunks", "分两块预填充的提示")
    conclude("scheduler-check", titles, out, lambda: analyze.analyze_chunk(analyze.read_log(log)))


@main.command()
@log_option()
@cli.out_option
def slots(log: Path, out: Path | None) -> None:
    """Lab 03, any case: every slot recomputed from the logged block tables."""
    titles = ("Slots recomputed from block tables", "由块表重新计算的 slot")
    conclude("kv-slots-runtime", titles, out, lambda: analyze.analyze_slots(analyze.read_log(log)))


@main.command()
@log_option()
@cli.out_option
def runner(log: Path, out: Path | None) -> None:
    """Lab 03, any case: what the runner sends to the model."""
    titles = ("What the runner sends to the model", "runner 交给模型的输入")
    conclude("runner-check", titles, out, lambda: analyze.analyze_runner(analyze.read_log(log)))


@main.command()
@log_option()
@cli.out_option
def shapes(log: Path, out: Path | None) -> None:
    """Lab 03 with --shapes: layer 0 and the logits against config.json's sizes."""
    titles = ("Shapes of layer 0", "第 0 层的形状")
    conclude("model-shapes-check", titles, out, lambda: analyze.analyze_shapes(analyze.read_log(log)))


@main.command()
@log_option()
@cli.out_option
def prefix(log: Path, out: Path | None) -> None:
    """Lab 03, case prefix: 512 tokens found in the cache. Also writes a TSV."""
    titles = ("A prefix of 512 tokens found in the cache", "命中 512 个 token 的前缀缓存")
    conclude("prefix-cache-check", titles, out, lambda: analyze.analyze_prefix(analyze.read_log(log)))


@main.command()
@click.option("--variable", required=True, help="The one setting that may differ, for example eager.")
@log_option()
@log_option("--other", "The log to compare it with.")
@cli.out_option
def compare(variable: str, log: Path, other: Path, out: Path | None) -> None:
    """Two logs of lab 04: the ratio of their throughputs, if nothing but --variable differs."""

    def work() -> Findings:
        return analyze.compare_benchmarks(analyze.read_log(log), analyze.read_log(other), variable)

    def work_and_say() -> Findings:
        findings = work()
        click.echo(f"throughput_ratio={findings.facts['throughput_ratio']:.3f}")
        return findings

    conclude("benchmark-comparison", ("One setting changed", "只改变一个设置"), out, work_and_say)


if __name__ == "__main__":
    main()
