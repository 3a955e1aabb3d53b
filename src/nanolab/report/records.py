"""One record per request and observer, rebuilt from an event log; warm-up left out, nothing else dropped.

The two observers see the same token at different times. A record holds the times of one of them, so a latency never
mixes clocks or places: engine times start at `submitted`, client times at `sent` (and, open loop, at `planned`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from nanolab.serving.eventlog import Log
from nanolab.serving.events import Admitted, Chunk, Ended, Event, Finished, Reason, Sent, Step, Submitted, Token

__all__ = ["UNFINISHED", "RequestRecord", "build_records", "reasons_of", "steps_of", "warmup_ids"]

UNFINISHED = "unfinished"  # no terminal event: the log is cut, or the run was killed


@dataclass
class RequestRecord:
    request_id: str
    observer: str
    request_class: str | None = None
    started_ns: int = 0  # submitted (engine) or sent (client)
    planned_ns: int | None = None  # client only
    admitted_ns: int | None = None  # engine only
    arrivals: list[tuple[int, int | None]] = field(default_factory=list)  # (time, tokens that came then)
    rounds: list[int] = field(default_factory=list)  # engine only: the round of each token
    started_round: int | None = None
    admitted_round: int | None = None
    ended_ns: int | None = None
    reason: str = UNFINISHED
    output_tokens: int | None = None
    workers: set[str] = field(default_factory=set)  # who served it (client: endpoint)
    retries: int = 0
    message: str | None = None

    @property
    def is_complete(self) -> bool:
        return self.reason != UNFINISHED and Reason(self.reason).is_complete

    @property
    def first_ns(self) -> int | None:
        return self.arrivals[0][0] if self.arrivals else None

    @property
    def last_ns(self) -> int | None:
        return self.arrivals[-1][0] if self.arrivals else None

    @property
    def counted_tokens(self) -> int | None:
        """Tokens by count of what arrived; None when a chunk did not say how many it held."""
        total = 0
        for _, tokens in self.arrivals:
            if tokens is None:
                return self.output_tokens
            total += tokens
        return total


def build_records(log: Log) -> dict[str, list[RequestRecord]]:
    """Records by observer, in order of their start. An id used twice gives two records."""
    open_records: dict[tuple[str, str], RequestRecord] = {}
    records: dict[str, list[RequestRecord]] = {"engine": [], "client": []}
    warmup = warmup_ids(log)
    for event in log.events:
        if event.request_id is None or event.request_id in warmup:
            continue
        key = (event.observer, event.request_id)
        if isinstance(event, Submitted | Sent):
            open_records[key] = _start(event)
            records[event.observer].append(open_records[key])
        elif (record := open_records.get(key)) is not None:
            _absorb(record, event)
    return {observer: found for observer, found in records.items() if found}


def warmup_ids(log: Log) -> set[str]:
    """Those the header lists; a server's log knows its clients' warm-up requests by their class."""
    by_class = {
        event.request_id
        for event in log.events
        if isinstance(event, Submitted | Sent) and event.request_class == "warmup" and event.request_id is not None
    }
    return by_class | set(log.header.warmup)


def _start(event: Submitted | Sent) -> RequestRecord:
    assert event.request_id is not None
    record = RequestRecord(event.request_id, event.observer, event.request_class, event.t_ns)
    if isinstance(event, Sent):
        record.planned_ns = event.planned_ns
    else:
        record.started_round = event.round
    return record


def _absorb(record: RequestRecord, event: Event) -> None:
    if event.worker_id is not None:
        record.workers.add(event.worker_id)
    if isinstance(event, Token):
        record.arrivals.append((event.t_ns, 1))
        record.rounds.append(event.round or 0)
    elif isinstance(event, Chunk):
        record.arrivals.append((event.t_ns, event.tokens))
    elif isinstance(event, Admitted):
        record.admitted_ns, record.admitted_round = event.t_ns, event.round
    elif isinstance(event, Finished | Ended):
        record.ended_ns, record.reason = event.t_ns, event.reason.value
        record.output_tokens, record.message = event.output_tokens, event.message
    else:
        record.retries += 1


def steps_of(log: Log) -> list[Step]:
    return [event for event in log.events if isinstance(event, Step)]


def reasons_of(records: list[RequestRecord]) -> dict[str, int]:
    """Every request counted under the reason of its end; the counts add up to the number of requests."""
    return dict(sorted(Counter(record.reason for record in records).items()))
