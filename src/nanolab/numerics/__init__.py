"""Teacher-forced logits: collect whole rows from an engine or from Transformers, then judge two collections.

Collecting says nothing about numbers; only `compare` judges. Knows nothing of click and prints nothing.
"""

from .collection import Collection, Paths, read_collection, write_collection
from .compare import Judgement, Thresholds, judge
from .forced import FaultSeen, ForcedRun, GroupFacts, collect_engine
from .reference import collect_reference, load_reference, settle_device
from .suites import SUITES, Group, Suite
from .uncovered import judge_uncovered

__all__ = [
    "SUITES",
    "Collection",
    "FaultSeen",
    "ForcedRun",
    "Group",
    "GroupFacts",
    "Judgement",
    "Paths",
    "Suite",
    "Thresholds",
    "collect_engine",
    "collect_reference",
    "judge",
    "judge_uncovered",
    "load_reference",
    "read_collection",
    "settle_device",
    "write_collection",
]
