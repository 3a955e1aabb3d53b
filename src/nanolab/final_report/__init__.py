"""The final report: what the recorded blocks prove, with their evidence types, and what is still pending and why.

Contract: every conclusion is read from a block; nothing is filled in. A missing result is listed with the reason
and the command that makes it. The learner's own runs/ come before the manual's docs/evidence/, and the text says
which. Notes are made once and never overwritten.
"""

from nanolab.final_report.collect import EVIDENCE_WORDS, Claim, Collection, EventLog, collect, pending
from nanolab.final_report.notes import NOTES, Note, init_notes, is_written
from nanolab.final_report.render import render

__all__ = [
    "EVIDENCE_WORDS",
    "NOTES",
    "Claim",
    "Collection",
    "EventLog",
    "Note",
    "collect",
    "init_notes",
    "is_written",
    "pending",
    "render",
]
