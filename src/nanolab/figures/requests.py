"""The request timeline of a recorded load run: who waited, who was computed in which step, when tokens came.

Drawn from an event log (`read_run`), so unlike the other figures it belongs to one run. The log's own times are used
as they are: a span is an engine step that had the request in its batch, a tick is a token event.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from nanolab.errors import LabError
from nanolab.serving.eventlog import Log
from nanolab.serving.events import Admitted, Event, Finished, Step, Submitted, Token

from .canvas import MARGIN, SMALL, WIDTH, Canvas

LEFT, RIGHT = 58.0, WIDTH - MARGIN - 10
LANE, BAR = 16.0, 9.0
TONES = {"prefill": "warm", "decode": "accent"}
MARK_DIGITS = 12  # of the log's sha256, printed in the picture


@dataclass(frozen=True)
class Span:
    """One engine step, or several that follow each other; milliseconds after the first request."""

    phase: str
    begin: float
    end: float


@dataclass
class Lane:
    request_id: str
    is_long: bool
    submitted: float
    admitted: float = math.inf
    ended: float = math.inf
    spans: list[Span] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class RecordedRun:
    lanes: Sequence[Lane]
    facts: str  # device, policy and execution, as the log's header has them
    mark: str  # first digits of the log's sha256

    @property
    def end(self) -> float:
        return max(lane.ended for lane in self.lanes)

    def beginning(self) -> tuple[list[Lane], float]:
        """The requests admitted before any had ended, and the time by which each had its first token."""
        first_end = min(lane.ended for lane in self.lanes)
        early = [lane for lane in self.lanes if lane.admitted < first_end and lane.tokens]
        return early, 50.0 * math.ceil(max(lane.tokens[0] for lane in early) / 50)


def read_run(log: Log) -> RecordedRun:
    """The lanes of a complete wall-mode log with engine events; LabError says what else it is."""
    header = log.header
    if log.is_partial or header.round_injected:
        what = log.problems[0] if log.is_partial else "it was injected by round, so its times mean nothing"
        raise LabError(f"{log.path} cannot be drawn: {what}; record it with `run.py load --mode wall`")
    lanes: dict[str, Lane] = {}
    start: int | None = None
    for event in log.events:
        if event.observer != "engine" or event.request_id in header.warmup:
            continue
        if isinstance(event, Submitted):
            start = event.t_ns if start is None else start
            name = str(event.request_id)
            lanes[name] = Lane(name, event.request_class == "long", (event.t_ns - start) / 1e6)
        elif start is not None:
            _follow(event, lanes, start)
    if not lanes or any(lane.ended == math.inf or not lane.spans for lane in lanes.values()):
        raise LabError(f"{log.path} cannot be drawn: not every request was computed and ended; use a clean load run")
    device = (header.device or {}).get("name") or (header.device or {}).get("kind")
    parts = (device, header.config.get("policy"), header.config.get("execution"))
    facts = ", ".join(str(part) for part in parts if part is not None)
    digest = hashlib.sha256(log.path.read_bytes()).hexdigest()
    return RecordedRun(list(lanes.values()), facts, digest[:MARK_DIGITS])


def _follow(event: Event, lanes: dict[str, Lane], start: int) -> None:
    at = (event.t_ns - start) / 1e6
    if isinstance(event, Step):
        for request_id, *_ in event.batch:
            if request_id in lanes:
                lanes[request_id].spans.append(Span(event.phase, (event.started_ns - start) / 1e6, at))
        return
    lane = lanes[str(event.request_id)]
    if isinstance(event, Admitted):
        lane.admitted = at
    elif isinstance(event, Token):
        lane.tokens.append(at)
    elif isinstance(event, Finished):
        lane.ended = at


def joined(spans: Sequence[Span], gap: float) -> list[Span]:
    """Steps of one phase with at most `gap` between them as one span: single steps are too thin to draw."""
    result: list[Span] = []
    for span in spans:
        if result and result[-1].phase == span.phase and span.begin - result[-1].end <= gap:
            span = Span(span.phase, result.pop().begin, span.end)
        result.append(span)
    return result


# ---- drawing ---------------------------------------------------------------------------------------------


def request_timeline(c: Canvas, run: RecordedRun) -> None:
    t = c.pick
    early, window = run.beginning()
    chunks = max(sum(span.phase == "prefill" for span in lane.spans) for lane in run.lanes)
    c.name(
        t("请求时间线", "Request timeline"),
        t(
            f"{len(run.lanes)} 个请求，每个一行：排队、prefill、decode。"
            f"最长的输入分 {chunks} 块算，最后一块之后才有 token。",
            f"{len(run.lanes)} requests, a lane each: queued, prefill, decode. The longest prompt takes {chunks} "
            "chunks, and its first token comes after the last of them.",
        ),
    )
    y = _legend(c)
    heading = t(f"前 {window:.0f} ms：每一步，每个 token", f"The first {window:.0f} ms: every step, every token")
    y = _panel(c, y, heading, early, window, is_whole=False)
    heading = t(f"整次运行：{len(run.lanes)} 个请求", f"The whole run: {len(run.lanes)} requests")
    y = _panel(c, y + 14, heading, run.lanes, run.end, is_whole=True)
    note = t(
        f"行名加粗：长输入。横轴：毫秒。{run.facts}；日志 {run.mark}",
        f"Bold: a long prompt. Axis: milliseconds. {run.facts}; log {run.mark}",
    )
    c.note(y + 10, note)


def _legend(c: Canvas) -> float:
    """The four things a lane can show, two a row; returns the y below them."""
    t = c.pick
    for at, (kind, label) in enumerate(
        [
            ("queued", t("排队，未进引擎", "queued, not admitted")),
            ("prefill", t("prefill", "prefill")),
            ("waits", t("在引擎里，本步没有它", "admitted, not in step")),
            ("decode", t("decode；竖线：token", "decode; line: token")),
        ]
    ):
        x, y = (MARGIN, MARGIN + 176)[at % 2], 14.0 + 20 * (at // 2)
        if kind == "queued":
            c.rect(x, y, 20, BAR, "fill", dashed=True, radius=1)
        elif kind == "waits":
            c.line((x, y + BAR / 2), (x + 20, y + BAR / 2))
        else:
            c.rect(x, y, 20, BAR, TONES[kind], radius=1)
            if kind == "decode":
                c.line((x + 20, y - 2), (x + 20, y + BAR + 2))
        c.text(x + 26, y + BAR, label, anchor="start", size=SMALL)
    return 64.0


def _panel(c: Canvas, top: float, heading: str, lanes: Sequence[Lane], until: float, *, is_whole: bool) -> float:
    """One time axis with its lanes; returns the y below the axis."""
    c.text(MARGIN, top + 8, heading, anchor="start", bold=True)
    scale = (RIGHT - LEFT) / until
    top += 18
    for at, lane in enumerate(lanes):
        _lane(c, top + at * LANE, lane, scale, until, is_whole=is_whole)
    return _axis(c, top + len(lanes) * LANE, until, scale)


def _lane(c: Canvas, y: float, lane: Lane, scale: float, until: float, *, is_whole: bool) -> None:
    def x(time: float) -> float:
        return LEFT + min(time, until) * scale

    middle = y + BAR / 2
    c.text(LEFT - 6, y + BAR, lane.request_id, anchor="end", size=SMALL, bold=lane.is_long)
    c.line((x(lane.admitted), middle), (x(lane.ended), middle))
    if (x(lane.admitted) - x(lane.submitted)) > 1:
        c.rect(x(lane.submitted), y, x(lane.admitted) - x(lane.submitted), BAR, "fill", dashed=True, radius=1)
    spans = joined(lane.spans, 2 / scale) if is_whole else lane.spans
    for span in spans:
        if span.begin < until:
            c.rect(x(span.begin), y, max(x(span.end) - x(span.begin), 0.6), BAR, TONES[span.phase], radius=1)
    if not is_whole:
        for time in lane.tokens:
            if time <= until:
                c.line((x(time), y - 2), (x(time), y + BAR + 2))


def _axis(c: Canvas, y: float, until: float, scale: float) -> float:
    """Ticks at a round distance, four to nine of them, each with its milliseconds."""
    distance = next(d for d in (10**k * m for k in range(7) for m in (1, 2, 5)) if until / d <= 7)
    c.line((LEFT, y), (RIGHT, y))
    for at in range(int(until / distance) + 1):
        x = LEFT + at * distance * scale
        c.line((x, y), (x, y + 4))
        c.text(x, y + 17, f"{at * distance:g}", size=SMALL, tone="soft")
    return y + 26
