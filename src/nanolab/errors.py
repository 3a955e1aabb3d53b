"""Errors that end a script, each with its exit code.

    click.ClickException
    └── LabError               bad input: exit 2, like click's own usage errors
        └── MissingPrerequisite   a GPU, weights, a package... is missing: exit 4, `PENDING` printed last

A message names the value that was seen, the limit it met and the next command to try.
"""

from __future__ import annotations

from typing import IO, Any

import click

from nanolab.verdicts import Verdict

__all__ = ["LabError", "MissingPrerequisite"]


class LabError(click.ClickException):
    """Bad input. Nothing was run, or nothing worth recording was."""

    exit_code = 2


class MissingPrerequisite(LabError):
    """Something this host does not have yet; the run neither passed nor failed."""

    exit_code = Verdict.PENDING.exit_code

    def show(self, file: IO[Any] | None = None) -> None:
        """The reason on stderr, then the verdict as the last line of stdout."""
        click.echo(f"Pending: {self.format_message()}", file=file, err=file is None)
        click.echo(Verdict.PENDING.value)
