"""Download Qwen3-0.6B at the pinned revision and verify it; the only script that uses the network."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nanolab.cli import out_option
from nanolab.evidence import Recording
from nanolab.models import directory, hub
from nanolab.models import download as pinned
from nanolab.verdicts import EvidenceType, Verdict


@click.command()
@click.option(
    "--model", type=click.Path(path_type=Path, file_okay=False), envvar="MODEL_DIR", required=True, metavar="DIR",
    help="Where to put it. Default: $MODEL_DIR (set by `source env.sh`).",
)  # fmt: skip
@click.option("--weights", is_flag=True, help="Fetch the weights too (1.5 GB), not only config and tokenizer.")
@click.option("--revision", envvar="MODEL_REVISION", default=pinned.REVISION, hidden=True)
@click.option("--endpoint", envvar="HF_ENDPOINT", default=None, hidden=True)
@out_option
def main(model: Path, weights: bool, revision: str, endpoint: str | None, out: Path | None) -> None:
    """Fetch, verify every hash, then check the model's constants without a network.

    Interrupted? Run the same command again: finished files are kept, an unfinished one is continued.
    """
    if not sys.stderr.isatty():
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
    source = hub.HubRevision(pinned.REPO, revision, endpoint)
    with Recording(
        "model-download", title_en="Download of the pinned model", title_zh="下载固定版本的模型",
        out=out, sources=[pinned, hub, directory],
    ) as rec:  # fmt: skip
        rec.config.update(repo=pinned.REPO, revision=revision, weights=weights)
        rec.result.update(files=[], differences=[])
        rec.finish(_run(model, source, weights, rec), EvidenceType.STATIC)


def _run(model: Path, source: hub.HubRevision, weights: bool, rec: Recording) -> Verdict:
    click.echo(f"{source.repo} at {source.revision} -> {model}")
    try:
        rec.result["files"] = pinned.download(model, source, weights=weights, report=click.echo)
    except hub.WrongContent as error:
        click.echo(str(error), err=True)
        rec.notes.append(str(error))
        return Verdict.FAIL
    differences = pinned.check_download(model, weights=weights)
    config = directory.read_json(model / "config.json")
    for name in pinned.CHECKED:
        click.echo(f"{name}: {config.get(name)}")
    click.echo(f"dtype: {pinned.stored_dtype(config)}")
    click.echo(f"rope settings, as downloaded: {pinned.rope_settings(config)}")
    for wrong in differences:
        click.echo(f"{wrong.name} is {wrong.observed!r}; the manual's numbers need {wrong.expected!r}", err=True)
    rec.result["differences"] = [wrong.name for wrong in differences]
    if differences:
        return Verdict.FAIL
    kind, length = pinned.tokenizer_facts(model)
    click.echo(f"tokenizer: {kind}, length {length:,}")
    rec.result.update(tokenizer_class=kind, tokenizer_length=length)
    return Verdict.PASS


if __name__ == "__main__":
    main()
