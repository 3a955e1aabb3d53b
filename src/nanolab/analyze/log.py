"""Reading a lab's log: JSON lines, possibly among other text (a Traceback, if stderr went into the same file).

A line that begins with "{" must be one complete event; any other line is text. What is missing is looked for where
the reason is: the Traceback of the raw log.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanolab.errors import LabError

Event = dict[str, Any]
TRACE_COMMAND = "python scripts/labs/03_trace_engine.py --case {case}"
LINE_END = re.compile(r"\r\n|\n|\r")  # a progress bar ends its lines with a carriage return
MOMENTS = ("before_schedule", "scheduled", "gpu_inputs", "after_postprocess")


@dataclass(frozen=True)
class StepEvents:
    """One step's four moments."""

    number: int
    before: Event
    scheduled: Event
    inputs: Event
    after: Event

    @property
    def phase(self) -> str:
        return str(self.scheduled["phase"])


@dataclass(frozen=True)
class EventLog:
    path: Path
    events: tuple[Event, ...]
    traceback_lines: tuple[int, ...]  # line numbers, counted from 1

    def all(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["event"] == kind]

    def one(self, kind: str, make: str) -> Event:
        """The first event of this kind; LabError says what to do when there is none. `make` is the log's command."""
        found = self.all(kind)
        if not found:
            raise self.missing(kind, make)
        return found[0]

    def missing(self, what: str, make: str) -> LabError:
        if self.traceback_lines:
            where = f"The run failed: read the Traceback at line {self.traceback_lines[0]} of this raw log first."
        else:
            where = "It holds no Traceback either; run again with 2>&1 before the pipe, so that an error is kept."
        return LabError(
            f"{self.path} has no {what} event ({len(self.events)} events read). {where} "
            f"Then make the log again, never by hand: {make}"
        )

    def trace_of(self, *cases: str) -> Event:
        """The run event of a trace of one of `cases`, complete to its end."""
        make = TRACE_COMMAND.format(case=cases[0] if len(cases) == 1 else "|".join(cases))
        run = self.one("run", make)
        if run["case"] not in cases:
            raise LabError(
                f"{self.path} is a trace of case {run['case']}; this analysis reads {' or '.join(cases)}: {make}"
            )
        self.one("end", make)
        return run

    def steps(self) -> list[StepEvents]:
        """The steps in order, each with its four moments."""
        make = TRACE_COMMAND.format(case=self.events[0].get("case", "CASE"))
        numbers = sorted({event["step"] for kind in MOMENTS for event in self.all(kind)})
        steps = []
        for number in numbers:
            moments = []
            for kind in MOMENTS:
                found = [event for event in self.all(kind) if event["step"] == number]
                if not found:
                    raise self.missing(f"{kind} (step {number})", make)
                moments.append(found[0])
            steps.append(StepEvents(number, *moments))
        return steps


def read_log(path: Path) -> EventLog:
    """LabError names the line that is no complete event."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise LabError(
            f"--log {path} cannot be read: {error.strerror}; give the file that the lab's output went to"
        ) from error
    except UnicodeDecodeError as error:
        raise LabError(
            f"--log {path} is no text: byte {error.start} is not UTF-8; is it really a lab's log?"
        ) from error
    events, tracebacks = [], []
    for number, line in enumerate(LINE_END.split(text), 1):
        if line.startswith("Traceback (most recent call last)"):
            tracebacks.append(number)
        if line.startswith("{"):
            events.append(_event(line, path, number))
    return EventLog(path, tuple(events), tuple(tracebacks))


def _event(line: str, path: Path, number: int) -> Event:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise LabError(
            f"{path}, line {number} is broken: {error}. Two programs may have written to one log, or the run was "
            "killed; make the log again, never repair it by hand."
        ) from error
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise LabError(f"{path}, line {number} is JSON but no event: it has no name under `event`")
    return event
