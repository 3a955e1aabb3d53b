"""The service and its load: simulate, trace, load, serve, client, report, timeline (sections 5.3 to 5.7)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, TypeVar

import click

from nanolab import cli
from nanolab.errors import LabError
from nanolab.evidence import conclude
from nanolab.verdicts import Verdict

F = TypeVar("F")


def jsonl_out(command: F) -> F:
    """`--out FILE.jsonl`, required: where the event log goes."""
    return click.option("--out", type=click.Path(path_type=Path), required=True, help="Event log (JSONL).")(command)


def engine_options(command: F) -> F:
    """What decides which engine runs and how; shared by `load` and `serve`."""
    options = [
        click.option("--source", type=click.Path(path_type=Path), help="Default: $NANO_DIR, else the bundled engine."),
        click.option("--model", type=click.Path(path_type=Path), envvar="MODEL_DIR", help="Default: $MODEL_DIR."),
        click.option("--simulated", is_flag=True, help="A simulated engine: no model; the log is marked simulated."),
        click.option("--simulated-step-ms", default=2.0, show_default=True, help="How long a simulated step takes."),
        click.option("--policy", type=click.Choice(["prefill_first", "balanced"]), default="prefill_first"),
        click.option("--max-model-len", default=1024, show_default=True, help="Context, in tokens."),
        click.option("--batch-tokens", default=256, show_default=True, help="Token budget of a prefill step."),
        click.option("--batch-seqs", default=4, show_default=True, help="Sequences in a step at most."),
        click.option("--max-active", default=8, show_default=True, help="Requests in the engine at most."),
        click.option("--max-queued", default=256, show_default=True, help="Requests waiting for admission at most."),
        click.option("--tp", default=1, show_default=True, help="Ranks (tensor parallelism)."),
        click.option("--eager/--graph", default=True, show_default=True, help="Without or with CUDA graphs."),
        click.option("--gpu-memory-utilization", default=0.5, show_default=True, help="Sizes the KV pool on a GPU."),
        click.option("--dist-init", help="Address at which this engine's ranks meet, tcp://host:port (patch 04)."),
        click.option("--shm-name", help="Name of this engine's shared memory (patch 04)."),
    ]
    for option in reversed(options):
        command = option(command)  # type: ignore[type-var]
    return command


def split_engine(options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """(EngineOptions, the other options)"""
    from nanolab.serving.launch import EngineOptions

    names = EngineOptions.__dataclass_fields__
    engine = EngineOptions(**{name: value for name, value in options.items() if name in names})
    return engine, {name: value for name, value in options.items() if name not in names}


@click.group()
def main() -> None:
    """Run, load and report the lab's inference service."""


# ---- simulate --------------------------------------------------------------------------------------------


@main.command()
@jsonl_out
def simulate(out: Path) -> None:
    """The whole service path on CPU with a simulated engine; every scenario checks what it states."""
    from nanolab.serving.eventlog import EventLog
    from nanolab.serving.launch import run_header
    from nanolab.serving.scenarios import SCENARIOS, run_scenario
    from nanolab.verdicts import EvidenceType

    failed = 0
    engine = {"kind": "simulated"}
    header = run_header(evidence=EvidenceType.CPU_SIMULATION, simulated=True, config={"engine": engine})
    with EventLog(out, header) as log:
        for scenario in SCENARIOS:
            outcome = run_scenario(scenario, log.write)
            failed += bool(outcome.problems)
            click.echo(f"{'BAD ' if outcome.problems else 'GOOD'} {scenario.name}: {outcome.requests} requests")
            click.echo(f"     may happen: {scenario.may}")
            click.echo(f"     must hold:  {scenario.must}")
            for problem in outcome.problems:
                click.echo(f"     MISSING {problem}")
    click.echo(f"{len(SCENARIOS) - failed} of {len(SCENARIOS)} scenarios hold (simulated engine) -> {out}")
    conclude(Verdict.FAIL if failed else Verdict.PASS)


# ---- trace -----------------------------------------------------------------------------------------------


@main.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Trace (JSONL).")
@click.option("--requests", default=12, show_default=True)
@click.option("--prompt-tokens", default=32, show_default=True, help="Of a short request.")
@click.option("--long-prompt-tokens", default=768, show_default=True, help="Of a long request.")
@click.option("--long-every", default=4, show_default=True, help="Every n-th request is long; 0: none.")
@click.option("--max-tokens", default=64, show_default=True, help="Output tokens of each request.")
@click.option("--interval-ms", default=40.0, show_default=True, help="Gap between arrivals (mean, if random).")
@click.option("--seed", default=17, show_default=True)
@click.option("--arrivals", type=click.Choice(["fixed", "poisson", "bursty"]), default="fixed", show_default=True)
@click.option("--burst-size", default=4, show_default=True, help="bursty: requests that arrive together.")
@click.option("--vocab-size", default=256, show_default=True, help="Token ids are drawn from [0, this).")
@click.option("--import", "import_file", type=click.Path(path_type=Path), help="Make the trace from a public one.")
@click.option("--format", "import_format", type=click.Choice(["mooncake", "azure", "burstgpt"]), default="mooncake")
@click.option("--limit", type=int, help="import: requests at most.")
@click.option("--time-scale", default=1.0, show_default=True, help="import: 0.5 plays twice as fast.")
@click.option("--max-prompt-tokens", default=768, show_default=True, help="import: longer prompts are clipped.")
@click.option("--max-output-tokens", default=128, show_default=True, help="import: longer outputs are clipped.")
def trace(out: Path, import_file: Path | None, **options: Any) -> None:
    """Write a fixed arrival trace; the same options give the same bytes."""
    from nanolab.load.generate import TraceOptions, generate_trace
    from nanolab.load.importers import ImportOptions, import_trace
    from nanolab.load.trace import read_trace, write_trace

    def chosen(kind: Any) -> Any:
        return kind(**{name: value for name, value in options.items() if name in kind.__dataclass_fields__})

    if import_file is not None:
        requests, report = import_trace(import_file, options["import_format"], chosen(ImportOptions))
        click.echo(f"read {report.read}, kept {report.kept}, skipped {report.skipped or 0}")
        click.echo(f"clipped {report.clipped_prompts} prompts and {report.clipped_outputs} outputs")
    else:
        requests = generate_trace(chosen(TraceOptions))
    write_trace(out, requests)
    made = read_trace(out)
    long = sum(request.request_class == "long" for request in made.requests)
    click.echo(
        f"{len(made.requests)} requests ({long} long, {len(made.requests) - long} short), {made.prompt_tokens} prompt "
        f"tokens, {made.output_tokens} output tokens, last arrival {made.requests[-1].timestamp:g} ms"
    )
    click.echo(f"sha256 {made.sha256}  {out}")
    conclude(Verdict.COLLECTED)


# ---- load ------------------------------------------------------------------------------------------------


@main.command()
@click.option("--trace", type=click.Path(path_type=Path), required=True, help="Arrival trace (JSONL).")
@click.option("--mode", type=click.Choice(["wall", "round"]), default="wall", show_default=True)
@click.option("--warmup-requests", "warmup", default=2, show_default=True, help="Sent first, left out of statistics.")
@click.option("--round-ms", default=20.0, show_default=True, help="round mode: trace milliseconds per round.")
@click.option("--profile-dir", type=click.Path(path_type=Path), help="Profile the steps; the log is marked profile.")
@click.option("--profile-steps", default=40, show_default=True, help="Steps to profile; a step is about 1 MB.")
@click.option("--endpoints", help="Servers to load, URL[,URL]; without it the engine runs in this process.")
@click.option("--api", type=click.Choice(["native", "openai"]), default="native", show_default=True)
@click.option("--router", type=click.Choice(["round_robin", "expected_work"]), default="round_robin")
@engine_options
@jsonl_out
@click.pass_context
def load(ctx: click.Context, trace: Path, out: Path, endpoints: str | None, **options: Any) -> None:
    """Send a trace, open loop, to an engine in this process or to servers."""
    from nanolab.load.runs import LoadOptions, RemoteOptions, run_in_process, run_remote

    engine, rest = split_engine(options)
    if endpoints is None:
        names = LoadOptions.__dataclass_fields__
        chosen = {name: value for name, value in rest.items() if name in names}
        summary = run_in_process(LoadOptions(trace=trace, out=out, engine=engine, **chosen), cli.announce)
    else:
        _refuse_engine_options(ctx)
        urls = tuple(url.strip() for url in endpoints.split(",") if url.strip())
        remote = RemoteOptions(trace, out, urls, rest["api"], rest["router"], rest["warmup"])
        summary = run_remote(remote, cli.announce)
    _show(summary)


def _refuse_engine_options(ctx: click.Context) -> None:
    """A server was started with its own options: giving them here would look as if they had an effect."""
    remote = {"trace", "out", "endpoints", "api", "router", "warmup", "mode"}
    given = [
        name
        for name in ctx.params
        if name not in remote and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise click.UsageError(f"{flags} belongs to the server that --endpoints names; start that server with it", ctx)
    if ctx.params["mode"] == "round":
        raise click.UsageError("--mode round needs the engine in this process; leave --endpoints out", ctx)


def _show(summary: Any) -> None:
    ends = ", ".join(f"{count} {reason}" for reason, count in sorted(summary.ends.items()))
    click.echo(f"{summary.requests} requests: {ends} -> {summary.out}")
    late = summary.lateness
    if late is not None:
        p99 = "not reported under 100 samples" if late.p99_ms is None else f"{late.p99_ms:.2f} ms"
        click.echo(f"sender lateness: p50 {late.p50_ms:.2f} ms, p99 {p99}, max {late.max_ms:.2f} ms")
    for note in summary.notes:
        click.echo(f"note: {note}")
    conclude(Verdict.COLLECTED if summary.is_clean else Verdict.REVIEW)


# ---- serve and client ------------------------------------------------------------------------------------


@main.command()
@engine_options
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8801, show_default=True, help="0: any free port.")
@click.option("--worker-id", default="worker-0", show_default=True)
@click.option("--served-model-name", help="Model id in /v1/models. Default: the directory's name.")
@click.option("--drain-s", default=10.0, show_default=True, help="After a signal: time for open requests to finish.")
@click.option("--send-timeout-s", default=10.0, show_default=True, help="A client that reads nothing for this long.")
@click.option("--stream-capacity", default=1024, show_default=True, help="Unread tokens a stream holds.")
@jsonl_out
def serve(out: Path, **options: Any) -> None:
    """Serve until SIGINT or SIGTERM; then drain, so that every open stream ends with a reason."""
    from nanolab.serving.serving_log import serve_logged

    engine, rest = split_engine(options)

    def on_ready(url: str) -> None:
        click.echo(f"ready {url}")
        sys.stdout.flush()

    failure = asyncio.run(serve_logged(engine, out, on_ready=on_ready, announce=cli.announce, **rest))
    if failure is not None:
        click.echo(f"the engine failed: {failure}", err=True)
    click.echo(f"stopped -> {out}")
    conclude(Verdict.FAIL if failure else Verdict.COLLECTED)


@main.command()
@click.option("--endpoints", "--endpoint", "endpoint", required=True, help="URL of one server.")
@click.option("--prompt", required=True, help="Text.")
@click.option("--max-tokens", default=32, show_default=True)
@click.option("--request-id", default="client-0", show_default=True)
@click.option("--cancel-after", type=int, help="Post to /cancel once this many tokens have come.")
@jsonl_out
def client(endpoint: str, prompt: str, max_tokens: int, request_id: str, cancel_after: int | None, out: Path) -> None:
    """Send one request, show its text as it comes, and record what this client saw."""
    from nanolab.load.client import run_client

    if "," in endpoint:
        raise LabError("client sends one request to one server; give one URL")

    def show(text: str) -> None:
        click.echo(text, nl=False)
        sys.stdout.flush()

    end = asyncio.run(run_client(endpoint, prompt, max_tokens, request_id, cancel_after, out, show))
    click.echo()
    message = f" ({end.message})" if end.message else ""
    click.echo(f"{request_id}: {end.output_tokens} tokens, ended as {end.reason.value}{message} -> {out}")
    bad = end.reason.value in ("error", "rejected", "slow_consumer", "shutdown")
    conclude(Verdict.FAIL if bad else Verdict.COLLECTED)


# ---- report and timeline ---------------------------------------------------------------------------------


@main.command()
@click.option("--inputs", required=True, help="Event logs, A.jsonl[,B.jsonl]; the first group is `before`.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="FILE.json; .md and .svg beside it.")
@click.option("--slo-ttft-ms", type=float, help="Limit for a request's TTFT.")
@click.option("--slo-tpot-ms", type=float, help="Limit for a request's TPOT.")
def report(inputs: str, out: Path, slo_ttft_ms: float | None, slo_tpot_ms: float | None) -> None:
    """Metrics with their formulas and sample counts, comparisons and plots."""
    from nanolab.report.metrics import Slo
    from nanolab.report.program import split_inputs, write_report

    write_report(split_inputs(inputs), out, Slo(slo_ttft_ms, slo_tpot_ms), click.echo)


@main.command()
@click.option("--input", "source", type=click.Path(path_type=Path), required=True, help="Event log (JSONL).")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Trace for Perfetto or chrome://tracing.")
def timeline(source: Path, out: Path) -> None:
    """An event log as a timeline for a trace viewer, checked against the log."""
    from nanolab.report.program import write_timeline

    conclude(write_timeline(source, out, click.echo))


if __name__ == "__main__":
    main()
