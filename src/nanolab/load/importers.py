"""Turning public traces into replayable ones: Mooncake (JSONL), Azure LLM inference (CSV), BurstGPT (CSV).

These files give times and lengths, no text. Prompt ids are made up deterministically; where the source has
`hash_ids` (Mooncake), requests that share prefix blocks there share them here. Whatever is skipped, clipped or
scaled is counted in `ImportReport` and printed: an import never changes a workload silently.
"""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from nanolab.errors import LabError
from nanolab.load.trace import HASH_BLOCK, TraceRequest, number_prefix_blocks

__all__ = ["FORMATS", "ImportOptions", "ImportReport", "import_trace"]

FORMATS = ("mooncake", "azure", "burstgpt")


@dataclass(frozen=True)
class ImportOptions:
    limit: int | None = None  # requests at most, from the start of the file
    time_scale: float = 1.0  # 0.5: twice as fast
    max_prompt_tokens: int = 768
    max_output_tokens: int = 128
    long_from: int = 512  # prompts of at least this many tokens (before clipping) are class "long"
    vocab_size: int = 256

    def __post_init__(self) -> None:
        if self.time_scale <= 0 or min(self.max_prompt_tokens, self.max_output_tokens, self.vocab_size) < 1:
            raise LabError("--time-scale and the token limits of an import must be greater than 0")


@dataclass
class ImportReport:
    read: int = 0
    kept: int = 0
    skipped: dict[str, int] = field(default_factory=dict)  # reason -> requests
    clipped_prompts: int = 0
    clipped_outputs: int = 0

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


@dataclass(frozen=True)
class Arrival:
    time_ms: float
    prompt: int
    output: int
    hash_ids: tuple[int, ...] = ()


def import_trace(path: Path, kind: str, options: ImportOptions) -> tuple[list[TraceRequest], ImportReport]:
    readers = {"mooncake": _read_mooncake, "azure": _read_azure, "burstgpt": _read_burstgpt}
    if kind not in readers:
        raise LabError(f"unknown trace format {kind!r}; choose one of {', '.join(FORMATS)}")
    report = ImportReport()
    arrivals: list[Arrival] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for arrival in readers[kind](path, file):
                if options.limit is not None and len(arrivals) >= options.limit:
                    break
                report.read += 1
                if arrival.prompt < 1 or arrival.output < 1:
                    report.skip("no prompt or no output tokens (a failed request in the source)")
                    continue
                arrivals.append(arrival)
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"cannot read {path}: {error}") from error
    if not arrivals:
        raise LabError(f"{path} holds no usable request in {kind} format; check --format")
    arrivals.sort(key=lambda arrival: arrival.time_ms)
    return _build(arrivals, options, report), report


def _build(arrivals: list[Arrival], options: ImportOptions, report: ImportReport) -> list[TraceRequest]:
    start = arrivals[0].time_ms
    prompts = [_prompt(index, arrival, options) for index, arrival in enumerate(arrivals)]
    hashes = number_prefix_blocks(prompts)
    requests = []
    for index, (arrival, prompt) in enumerate(zip(arrivals, prompts, strict=True)):
        output = min(arrival.output, options.max_output_tokens)
        report.clipped_prompts += len(prompt) < arrival.prompt
        report.clipped_outputs += output < arrival.output
        requests.append(
            TraceRequest(
                request_id=f"r{index:04d}",
                timestamp=round((arrival.time_ms - start) * options.time_scale, 3),
                input_length=len(prompt),
                output_length=output,
                request_class="long" if arrival.prompt >= options.long_from else "short",
                hash_ids=hashes[index],
                prompt_token_ids=prompt,
            )
        )
    report.kept = len(requests)
    return requests


def _prompt(index: int, arrival: Arrival, options: ImportOptions) -> list[int]:
    """Tokens block by block: a block's content follows from its hash id, or from the request when it has none."""
    length = min(arrival.prompt, options.max_prompt_tokens)
    prompt: list[int] = []
    for block in range(-(-length // HASH_BLOCK)):
        key = f"hash {arrival.hash_ids[block]}" if block < len(arrival.hash_ids) else f"request {index} block {block}"
        rng = Random(key)
        prompt += [int(rng.random() * options.vocab_size) for _ in range(HASH_BLOCK)]
    return prompt[:length]


def _read_mooncake(path: Path, file: Iterator[str]) -> Iterator[Arrival]:
    for number, line in enumerate(file, start=1):
        try:
            row = json.loads(line)
            yield Arrival(
                float(row["timestamp"]),
                int(row["input_length"]),
                int(row["output_length"]),
                tuple(row.get("hash_ids", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LabError(f"{path}, line {number} is not a Mooncake request: {error!r}") from error


def _read_azure(path: Path, file: Iterator[str]) -> Iterator[Arrival]:
    """Columns TIMESTAMP, ContextTokens, GeneratedTokens; times of day with up to seven decimals."""
    for number, row in _csv_rows(path, file, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        try:
            yield Arrival(_azure_ms(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        except ValueError as error:
            raise LabError(f"{path}, line {number} is not an Azure request: {error}") from error


def _read_burstgpt(path: Path, file: Iterator[str]) -> Iterator[Arrival]:
    """Columns Timestamp (seconds), Request tokens, Response tokens; a response of 0 tokens is a failed request."""
    for number, row in _csv_rows(path, file, ("Timestamp", "Request tokens", "Response tokens")):
        try:
            time_ms = float(row["Timestamp"]) * 1000
            yield Arrival(time_ms, int(float(row["Request tokens"])), int(float(row["Response tokens"])))
        except ValueError as error:
            raise LabError(f"{path}, line {number} is not a BurstGPT request: {error}") from error


def _csv_rows(path: Path, file: Iterator[str], columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(file)
    missing = [column for column in columns if column not in (reader.fieldnames or [])]
    if missing:
        raise LabError(f"{path} has no column {', '.join(missing)}; check --format")
    for row in reader:
        if any(row[column] is None for column in columns):
            raise LabError(f"{path}, line {reader.line_num} has too few columns")
        yield reader.line_num, row


def _azure_ms(text: str) -> float:
    whole, _, fraction = text.strip().partition(".")
    digits = "".join(character for character in fraction.split("+")[0] if character.isdigit())
    seconds = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.UTC).timestamp()
    return (seconds + float(f"0.{digits or 0}")) * 1000
