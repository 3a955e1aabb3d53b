"""Read a profile of `run.py load --profile-dir`: one decode and one prefill step, as facts and a picture (5.5.1).

\b
python scripts/maintain/profile_view.py --profile runs/profile-eager --log runs/profile-eager.jsonl \\
    --out runs/profile-eager.json

Beside the block it writes FILE.zh.svg, FILE.en.svg (the timeline) and FILE.trace.json.gz (these two steps alone, for
Perfetto or chrome://tracing).
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import click

from nanolab import cli
from nanolab.evidence import Recording, write_atomic
from nanolab.gpu_evidence import profile, profile_picture
from nanolab.serving.eventlog import read_log
from nanolab.verdicts import EvidenceType, Verdict


@click.command(help=__doc__)
@click.option(
    "--profile", "directory", type=click.Path(path_type=Path), required=True, help="What --profile-dir named."
)
@click.option("--log", type=click.Path(path_type=Path), required=True, help="The event log of the same run.")
@cli.out_option
def main(directory: Path, log: Path, out: Path | None) -> None:
    titles = {"title_en": "A profile, step by step", "title_zh": "逐轮读一份 profile"}
    block_id = out.stem if out else "profile-view"
    with Recording(block_id, **titles, out=out, sources=[profile, profile_picture]) as rec:
        header = read_log(log).header
        rec.engine, rec.model, rec.device = header.engine, header.model, header.device
        rec.config = header.config
        steps = profile.read_trace(directory / "trace.json")
        chosen = profile.typical(steps)
        rec.result = {name: step.facts() for name, step in chosen.items()}
        rec.result |= {
            "steps": len(steps),
            "decode_steps": sum(step.phase == "decode" for step in steps),
            "top_kernels": profile.top_work(steps),
        }
        memory = directory / "memory.json"
        if memory.is_file():
            rec.result["peak_memory_gib"] = json.loads(memory.read_text("utf-8"))
        rec.volatile += [*chosen, "steps", "decode_steps", "top_kernels"]
        rec.notes.append("profiled: the ranges locate time and are not compared with unprofiled runs")
        for name, step in chosen.items():
            facts = step.facts()
            click.echo(
                f"{name}: {facts['cpu_range_us']} us, {facts['kernels']} kernels, busy {facts['busy_share']:.0%}"
            )
        if out is not None:
            write_beside(out, chosen)
        rec.finish(Verdict.COLLECTED, EvidenceType(header.evidence or "static"))


def write_beside(out: Path, chosen: dict[str, profile.ProfiledStep]) -> None:
    for language in ("zh", "en"):
        write_atomic(out.with_suffix(f".{language}.svg"), profile_picture.draw(chosen, language).encode())
    small = json.dumps(profile.small_trace(chosen.values()), separators=(",", ":"))
    write_atomic(out.with_suffix(".trace.json.gz"), gzip.compress(small.encode(), mtime=0))


if __name__ == "__main__":
    main()
