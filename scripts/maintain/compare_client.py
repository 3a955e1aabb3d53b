"""Put another client's result (guidellm, vllm bench serve) beside the server's own log of the same run.

run.py serve --out runs/server.jsonl …      # one terminal
guidellm run --backend kind=openai_http,target=URL … --output kind=json,path=runs/client.json
compare_client.py --log runs/server.jsonl --client runs/client.json --kind guidellm --out runs/client-check.json
"""

from __future__ import annotations

from pathlib import Path

import click

from nanolab import cli
from nanolab.evidence import Recording
from nanolab.report import external, metrics, records
from nanolab.serving.eventlog import read_log
from nanolab.verdicts import EvidenceType, Verdict


@click.command()
@click.option("--log", "log_path", type=click.Path(path_type=Path), required=True, help="The server's event log.")
@click.option("--client", type=click.Path(path_type=Path), required=True, help="The client's JSON result.")
@click.option("--kind", type=click.Choice(external.CLIENTS), required=True)
@cli.out_option
def main(log_path: Path, client: Path, kind: str, out: Path | None) -> None:
    """PASS when mean TTFT and TPOT agree within 10 % and every request is in both; else REVIEW."""
    with Recording(
        out.stem if out else "client-check",
        title_en=f"TTFT and TPOT as {kind} measures them, beside the server's report of the same run",
        title_zh=f"同一次运行：{kind} 测得的 TTFT 与 TPOT，对照服务器自己的报告",
        out=out,
        sources=[external, metrics, records],
    ) as rec:
        log = read_log(log_path)
        rec.engine, rec.model, rec.device = log.header.engine, log.header.model, log.header.device
        rec.config = {"client": kind, **log.header.config}
        rec.result = external.compare_with(log, external.read_client(client, kind))
        rec.volatile = ["report", "client", "relative_difference"]
        rec.notes = [f"partial log: {problem}" for problem in log.problems]
        for name, facts in rec.result.items():
            click.echo(f"{name}: {facts}")
        agrees = rec.result["agrees"] and not rec.notes
        evidence = EvidenceType(log.header.evidence) if log.header.evidence else EvidenceType.STATIC
        rec.finish(Verdict.PASS if agrees else Verdict.REVIEW, evidence)


if __name__ == "__main__":
    main()
