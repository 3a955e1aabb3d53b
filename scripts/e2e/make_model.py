"""Make a teaching model: a real Qwen3 with synthetic weights, the same bytes on every machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from tqdm import tqdm

from nanolab.evidence import conclude
from nanolab.models import PRESETS, make_model, weight_bytes
from nanolab.verdicts import Verdict


@click.command()
@click.option("--preset", type=click.Choice(list(PRESETS)), default="tiny", show_default=True, help="Which shape.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Directory to make.")
@click.option("--seed", default=0, show_default=True, help="Another seed gives other weights.")
@click.option("--shards", default=1, show_default=True, help="Safetensors files to spread the weights over.")
@click.option(
    "--tokenizer", type=click.Path(path_type=Path, file_okay=False), default=None, metavar="DIR",
    help="Copy tokenizer.json and tokenizer_config.json from here; default: the byte tokenizer.",
)  # fmt: skip
def main(preset: str, out: Path, seed: int, shards: int, tokenizer: Path | None) -> None:
    """Write config, tokenizer and weights to DIR, which appears only when it is whole."""
    shape = PRESETS[preset]
    with tqdm(total=weight_bytes(shape), unit="B", unit_scale=True, disable=not sys.stderr.isatty()) as bar:
        make_model(shape, out, seed=seed, shards=shards, tokenizer=tokenizer, progress=bar.update)
    click.echo(f"{preset}: {weight_bytes(shape) / 2**20:.1f} MiB of synthetic weights in {out}")
    conclude(Verdict.PASS)


if __name__ == "__main__":
    main()
