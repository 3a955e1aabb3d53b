"""Options, announcements and progress that the click programs in scripts/ share.

Contract: this module parses and prints; it drives nothing and imports neither an engine nor torch, so
`--help` is instant on any host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from tqdm import tqdm

__all__ = ["announce", "model_option", "out_option", "progress", "source_option"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def source_option(command: F) -> F:
    """`--source DIR`: which engine to drive; resolved by `nanolab.sources.resolve`, which also judges it."""
    return click.option(
        "--source",
        type=click.Path(path_type=Path),
        default=None,
        metavar="DIR",
        help="Engine to drive: a working copy or an upstream clone. "
        "Default: $NANO_DIR if that directory exists, else the bundled engine.",
    )(command)


def model_option(command: F) -> F:
    """`--model DIR`, default the environment variable MODEL_DIR; the value is never None."""
    return click.option(
        "--model",
        type=click.Path(path_type=Path),
        envvar="MODEL_DIR",
        default=None,
        metavar="DIR",
        callback=_require_model,
        help="Model directory. Default: $MODEL_DIR (set by `source env.sh`).",
    )(command)


def _require_model(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    if value is None and not ctx.resilient_parsing:
        raise click.UsageError(
            "no model directory: MODEL_DIR is not set and --model was not given. Run `source env.sh` first, "
            "or make one with `python scripts/e2e/make_model.py --preset tiny --out models/tiny` and pass "
            "--model models/tiny.",
            ctx,
        )
    return value


def out_option(command: F) -> F:
    """`--out FILE.json`: where the result block goes. `Recording` checks it before any work is done."""
    return click.option(
        "--out",
        type=click.Path(path_type=Path),
        default=None,
        metavar="FILE",
        help="Write the result block (JSON) here; replaced only when the run has finished.",
    )(command)


def announce(**facts: object) -> None:
    """One line on stderr that says what is driven, e.g. engine, device and attention backend."""
    line = "  ".join(f"{name}={value}" for name, value in facts.items())
    click.echo(line, err=True)


def progress(items: Iterable[T], label: str, total: int | None = None) -> Iterable[T]:
    """Iterate over `items` with a bar on stderr when that is a terminal, silently otherwise."""
    bar: Iterable[T] = tqdm(items, desc=label, total=total, file=sys.stderr, disable=not sys.stderr.isatty())
    return bar
