"""Checks logs of the labs against the manual's values; reads text, drives nothing.

Each analysis takes an `EventLog` and returns `Findings`: facts, checks (what was seen beside what was expected) and,
for some, a table whose rows explain themselves. A log is evidence: it is never repaired, only made again.
"""

from .benchmark import compare_benchmarks
from .cached import analyze_cache
from .findings import Findings, Table
from .inputs import analyze_runner, analyze_slots
from .log import EventLog, read_log
from .prefix import analyze_prefix
from .scheduling import analyze_chunk, analyze_lifecycle
from .shapes import analyze_shapes

__all__ = [
    "EventLog",
    "Findings",
    "Table",
    "analyze_cache",
    "analyze_chunk",
    "analyze_lifecycle",
    "analyze_prefix",
    "analyze_runner",
    "analyze_shapes",
    "analyze_slots",
    "compare_benchmarks",
    "read_log",
]
