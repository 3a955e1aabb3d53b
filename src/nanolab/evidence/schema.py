"""The result block's schema, and the two checks every block passes: the schema, and no trace of a machine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from nanolab.errors import LabError
from nanolab.evidence.scrub import leaks

__all__ = ["ID_PATTERN", "SCHEMA_ID", "Block", "InvalidBlock", "load", "problems", "validate"]

SCHEMA_ID = "nanolab-block-1"
ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # also a file name; the schema holds the same
Block = dict[str, Any]  # the parsed JSON of one result block, as block.schema.json describes it


class InvalidBlock(LabError):
    """A block that breaks the schema or names a machine; the message lists every problem."""


@cache
def _validator() -> Draft202012Validator:
    schema = json.loads(Path(__file__).with_name("block.schema.json").read_text(encoding="utf-8"))
    return Draft202012Validator(schema)


def problems(block: object) -> list[str]:
    """Everything wrong with `block`, one line each; empty when it is valid."""
    found = [
        f"{'.'.join(map(str, error.absolute_path)) or 'block'}: {error.message}"
        for error in _validator().iter_errors(block)
    ]
    return sorted(found) + leaks(block)


def validate(block: object, name: str = "the block") -> None:
    """Raise `InvalidBlock` unless `block` is valid."""
    found = problems(block)
    if found:
        lines = "".join(f"\n  - {line}" for line in found)
        raise InvalidBlock(
            f"{name} is not a valid result block:{lines}\n"
            "Record it again with the script's --out; for a path or a name, pass the path relative to the "
            "repository (or through MODEL_DIR or NANO_DIR) so that it can be scrubbed. "
            "Do not edit the block by hand."
        )


def load(path: Path) -> Block:
    """Read and validate one block file."""
    try:
        block: Block = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InvalidBlock(f"{path} is not JSON ({error}); record it again with --out.") from error
    validate(block, str(path))
    return block
