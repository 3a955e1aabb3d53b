"""One pinned revision on the Hugging Face Hub, file by file: metadata, resumable fetch, hash check.

huggingface_hub speaks to the server (names, redirects, retries, progress bars). What is added here is that an
unfinished file outlives the process, so that running the same command again continues it, and that no file
appears under its own name before its hash equals the hub's. No token is ever sent: the model is public.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from nanolab.errors import LabError, MissingPrerequisite

from .directory import PARTIAL, file_sha256

_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
OFFLINE_STEP = (
    "Check the connection (a mirror can be given with HF_ENDPOINT) and run the same command again: it resumes. "
    "Without a network, work with the teaching model: "
    "python scripts/e2e/make_model.py --preset tiny --out models/tiny, then --model models/tiny"
)


class WrongContent(Exception):
    """Bytes that are not the published ones; the message says which file, and what was done about it."""


@dataclass(frozen=True)
class RemoteFile:
    """What the hub says of one file. `digest` is a SHA-256 for large files, a git blob id for small ones."""

    name: str
    url: str
    size: int
    digest: str


@dataclass(frozen=True)
class HubRevision:
    """`repo` at `revision`; `endpoint` None means huggingface_hub's own choice (HF_ENDPOINT or the public hub)."""

    repo: str
    revision: str
    endpoint: str | None = None

    def describe(self, name: str) -> RemoteFile:
        """The hub's metadata of a file; checks that it serves the revision that was asked for."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        url = hf_hub_url(self.repo, name, revision=self.revision, endpoint=self.endpoint)
        try:
            found = get_hf_file_metadata(url, token=False, endpoint=self.endpoint)
        except _network_errors() as error:
            raise self._unreachable(name, error) from error
        if _COMMIT.fullmatch(self.revision) and found.commit_hash != self.revision:
            raise WrongContent(f"{self.repo}: asked for revision {self.revision}, served {found.commit_hash}")
        if found.size is None or not found.etag:
            raise WrongContent(f"{url}: the server names neither size nor hash; is HF_ENDPOINT a hub?")
        return RemoteFile(name, found.location, found.size, found.etag)

    def fetch(self, remote: RemoteFile, directory: Path) -> bool:
        """Bring one file into `directory`; False if it was already there and right."""
        target = directory / remote.name
        if target.is_file() and matches(target, remote):
            return False
        partial = directory / PARTIAL / f"{remote.name}.{remote.digest[:16]}"
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            _check_space(partial, remote)
            self._continue(remote, partial)
        except _network_errors() as error:
            if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
                raise LabError(f"{partial} cannot be written: {error}. Give another --model.") from error
            raise self._unreachable(remote.name, error) from error
        if not matches(partial, remote):
            partial.unlink()
            raise WrongContent(
                f"{remote.name}: the bytes received do not have the published hash {remote.digest}; they were "
                "deleted. Run the same command again to fetch the file anew; if it happens twice, something "
                "between here and the hub changes what it passes on (try another network or HF_ENDPOINT)."
            )
        os.replace(partial, target)
        return True

    def _continue(self, remote: RemoteFile, partial: Path) -> None:
        from huggingface_hub.file_download import http_get

        if partial.is_file() and partial.stat().st_size > remote.size:
            partial.unlink()
        with partial.open("ab") as file:
            http_get(
                remote.url,
                file,
                resume_size=file.tell(),
                headers={"Accept-Encoding": "identity"},  # a compressed answer cannot be continued
                expected_size=remote.size,
                displayed_filename=remote.name,
            )

    def _unreachable(self, name: str, error: Exception) -> LabError:
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

        where = f"{self.repo} at revision {self.revision}"
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        if isinstance(error, RevisionNotFoundError | EntryNotFoundError | RepositoryNotFoundError):
            return LabError(f"the hub has no {name} in {where} ({reason}). Check MODEL_REVISION: source env.sh")
        return MissingPrerequisite(f"{name} of {where} could not be fetched: {reason}. {OFFLINE_STEP}")


def matches(path: Path, remote: RemoteFile) -> bool:
    """Whether a local file has the size and the hash that the hub states."""
    if path.stat().st_size != remote.size:
        return False
    if _SHA256.fullmatch(remote.digest):
        return file_sha256(path) == remote.digest
    return git_blob_id(path) == remote.digest


def git_blob_id(path: Path) -> str:
    """Git's name for a file's content, which is what the hub states for small files."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _check_space(partial: Path, remote: RemoteFile) -> None:
    missing = remote.size - (partial.stat().st_size if partial.is_file() else 0)
    free = shutil.disk_usage(partial.parent).free
    if free < missing:
        raise LabError(
            f"{remote.name} needs {missing / 2**20:,.0f} MiB more and the disk has {free / 2**20:,.0f} MiB free. "
            "Free some space, or give a --model on another disk."
        )


def _network_errors() -> tuple[type[Exception], ...]:
    """What a failed request raises: huggingface_hub 1.x uses httpx, 0.x requests (whose errors are OSErrors)."""
    try:
        import httpx
    except ImportError:
        return (OSError,)
    return (OSError, httpx.HTTPError)
