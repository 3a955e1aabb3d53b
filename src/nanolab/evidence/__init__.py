"""The result block: how it is recorded, validated, judged stale, promoted into the manual and re-verified.

Owns the one envelope every script writes with --out (block.schema.json). Knows nothing of engines beyond the
descriptions that scripts hand in.
"""

from nanolab.evidence.files import check_writable, format_json, write_atomic
from nanolab.evidence.provenance import (
    describe_device,
    describe_git,
    describe_versions,
    is_stale,
    repo_root,
    source_hashes,
    stale_files,
)
from nanolab.evidence.recording import Recording, conclude
from nanolab.evidence.schema import Block, InvalidBlock, load, problems, validate

__all__ = [
    "Block",
    "InvalidBlock",
    "Recording",
    "check_writable",
    "conclude",
    "describe_device",
    "describe_git",
    "describe_versions",
    "format_json",
    "is_stale",
    "load",
    "problems",
    "repo_root",
    "source_hashes",
    "stale_files",
    "validate",
    "write_atomic",
]
