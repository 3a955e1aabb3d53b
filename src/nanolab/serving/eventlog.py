"""Writing and reading event logs.

The writer never makes its caller wait for a disk: lists of events go into a queue, one thread encodes and writes
them. The reader keeps what a damaged log still says and reports what is missing; it drops nothing silently.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

import msgspec

from nanolab.errors import LabError
from nanolab.serving.events import (
    SCHEMA,
    Admitted,
    Chunk,
    Ended,
    EndOfRun,
    Event,
    Finished,
    Retried,
    RunHeader,
    Sent,
    Step,
    Submitted,
    Token,
    now_ns,
)

__all__ = ["EventLog", "Log", "read_log"]

AnyLine = RunHeader | Submitted | Admitted | Token | Finished | Step | Sent | Retried | Chunk | Ended | EndOfRun


class EventLog:
    """An event log being written. Use as a context manager: an exception leaves it marked incomplete."""

    def __init__(self, path: Path, header: RunHeader) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
        except OSError as error:
            raise LabError(f"cannot write the event log {path}: {error.strerror}; choose another --out") from error
        self._queue: SimpleQueue[list[Event] | None] = SimpleQueue()
        self._count = 0
        self._error: OSError | None = None
        self._encoder = msgspec.json.Encoder()
        self._file.write(self._encoder.encode(header) + b"\n")
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    def write(self, events: list[Event]) -> None:
        """Hand over a list of events; the caller must not change it afterwards."""
        self._queue.put(events)

    def close(self, complete: bool = True, note: str | None = None) -> None:
        """Write what is queued and the `end` line; raises LabError if any of it could not be written."""
        if not self._thread.is_alive():
            return
        self._queue.put(None)
        self._thread.join()
        end = EndOfRun(t_ns=now_ns(), events=self._count, complete=complete, note=note)
        self._try_write(self._encoder.encode(end) + b"\n")
        try:
            self._file.close()  # writes what an earlier attempt could not, or fails as it did
        except OSError as error:
            self._error = self._error or error
        if self._error:
            raise LabError(f"the event log {self.path} is not complete: {self._error.strerror}; free some space")

    def _run(self) -> None:
        while (events := self._queue.get()) is not None:
            self._count += len(events)
            self._try_write(self._encoder.encode_lines(events))

    def _try_write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            self._error = self._error or error

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close(complete=kind is None, note=None if value is None else f"{type(value).__name__}: {value}")


@dataclass
class Log:
    """An event log read back. `problems` is empty exactly when the log is complete."""

    path: Path
    header: RunHeader
    events: list[Event]
    problems: list[str] = field(default_factory=list)

    @property
    def is_partial(self) -> bool:
        return bool(self.problems)

    def of(self, *kinds: type[Event]) -> Iterable[Event]:
        return (event for event in self.events if isinstance(event, kinds))


def read_log(path: Path) -> Log:
    """Read a log. A cut-off tail gives a partial log; a broken line in the middle or no header is a LabError."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise LabError(f"cannot read the event log {path}: {error.strerror}") from error
    if not lines[-1]:
        lines.pop()  # what follows the last line's end
    decoded = _decode_lines(path, lines)
    header, rest = (decoded[0], decoded[1:]) if decoded else (None, [])
    if not isinstance(header, RunHeader) or header.schema != SCHEMA:
        raise LabError(f"{path} does not start with a {SCHEMA} run header; is it an event log of `run.py`?")
    log = Log(path, header, [line for line in rest if isinstance(line, Event)])
    _judge(log, rest, undecoded=len(lines) - 1 - len(rest))
    return log


def _decode_lines(path: Path, lines: list[bytes]) -> list[AnyLine]:
    decoder = msgspec.json.Decoder(AnyLine)
    decoded: list[AnyLine] = []
    for number, line in enumerate(lines, start=1):
        try:
            decoded.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if number == len(lines) and number > 1:
                break  # the line that was being written when the run was cut off
            raise LabError(f"{path}, line {number} is not an event: {error}") from error
    return decoded


def _judge(log: Log, rest: list[AnyLine], undecoded: int) -> None:
    """Say what is missing: the tail, the end line, or requests without a terminal event."""
    end = rest[-1] if rest and isinstance(rest[-1], EndOfRun) else None
    if undecoded:
        log.problems.append("the last line is cut off")
    if end is None:
        log.problems.append("there is no `end` line: the run was killed or is still going")
    elif not end.complete:
        log.problems.append(f"the run ended early: {end.note}")
    elif end.events != len(log.events):
        log.problems.append(f"the `end` line counts {end.events} events, the file holds {len(log.events)}")
