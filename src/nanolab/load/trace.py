"""Arrival traces: one request a line, read strictly, written byte for byte the same.

The format is a superset of Mooncake's (`timestamp` in ms, `input_length`, `output_length`, `hash_ids` with one id per
512-token prefix block), so other load generators replay the same file. A trace is checked as a whole before any of
it is sent: what is wrong is a LabError that names the file and the line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nanolab.errors import LabError

__all__ = ["HASH_BLOCK", "Trace", "TraceRequest", "number_prefix_blocks", "read_trace", "write_trace"]

HASH_BLOCK = 512  # tokens behind one entry of hash_ids, as in the Mooncake traces


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"request_class": "class"}):
    request_id: str
    timestamp: float  # planned arrival in ms after the start of the run
    input_length: int
    output_length: int
    request_class: str | None = None  # "short" or "long"
    hash_ids: list[int] = []
    round: int | None = None  # round mode: inject when this scheduling round begins (default: from timestamp)
    cancel_after_tokens: int | None = None
    read_delay_ms: float | None = None  # the client waits this long before each read
    prompt_token_ids: list[int] = []


@dataclass(frozen=True)
class Trace:
    path: Path
    sha256: str
    requests: tuple[TraceRequest, ...]

    @property
    def prompt_tokens(self) -> int:
        return sum(request.input_length for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.output_length for request in self.requests)


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    encoder = msgspec.json.Encoder()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(encoder.encode(request) + b"\n" for request in requests))
    except OSError as error:
        raise LabError(f"cannot write the trace {path}: {error.strerror}; choose another --out") from error


def read_trace(path: Path, vocab_size: int | None = None, max_model_len: int | None = None) -> Trace:
    """Read and check a whole trace; the engine's limits, when they are known, are checked too."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LabError(f"cannot read the trace {path}: {error.strerror}; make one with `run.py trace`") from error
    decoder = msgspec.json.Decoder(TraceRequest)
    requests: list[TraceRequest] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        where = f"{path}, line {number}"
        try:
            request = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise LabError(f"{where} is not a trace request: {error}") from error
        _check_request(where, request, vocab_size, max_model_len)
        if request.request_id in seen:
            raise LabError(f"{where} repeats request_id {request.request_id!r} of line {seen[request.request_id]}")
        if requests and request.timestamp < requests[-1].timestamp:
            raise LabError(f"{where}: timestamp {request.timestamp} is before line {number - 1}'s; sort the file by it")
        seen[request.request_id] = number
        requests.append(request)
    if not requests:
        raise LabError(f"{path} holds no request; make a trace with `run.py trace`")
    return Trace(path, hashlib.sha256(data).hexdigest(), tuple(requests))


def _check_request(where: str, request: TraceRequest, vocab_size: int | None, max_model_len: int | None) -> None:
    ids = request.prompt_token_ids
    if not ids:
        raise LabError(f"{where} has no prompt_token_ids; turn the file into a trace with `run.py trace --import`")
    if len(ids) != request.input_length:
        raise LabError(f"{where}: input_length is {request.input_length}, prompt_token_ids holds {len(ids)}")
    if request.output_length < 1 or not 0 <= request.timestamp < 1e12:
        raise LabError(
            f"{where}: output_length {request.output_length} or timestamp {request.timestamp} is out of range"
        )
    if not request.request_id:
        raise LabError(f"{where}: request_id is empty")
    limit = vocab_size if vocab_size is not None else 2**31
    wrong = next((token for token in ids if not 0 <= token < limit), None)
    if wrong is not None:
        raise LabError(f"{where}: token {wrong} is outside the model's vocabulary [0, {limit})")
    total = request.input_length + request.output_length
    if max_model_len is not None and total > max_model_len:
        raise LabError(
            f"{where}: {total} tokens in and out exceed the context of {max_model_len}; raise --max-model-len"
        )


def number_prefix_blocks(prompts: Iterable[list[int]]) -> list[list[int]]:
    """`hash_ids` of each prompt: equal numbers exactly where the prompts' prefixes, up to that block, are equal."""
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    result: list[list[int]] = []
    for prompt in prompts:
        ids: list[int] = []
        parent = -1
        for start in range(0, len(prompt), HASH_BLOCK):
            key = (parent, tuple(prompt[start : start + HASH_BLOCK]))
            parent = numbers.setdefault(key, len(numbers))
            ids.append(parent)
        result.append(ids)
    return result
