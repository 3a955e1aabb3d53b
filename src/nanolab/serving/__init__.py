"""The service: one owner thread around an engine, typed events, HTTP in front of it.

Public names: `Worker` and its limits, the request type, the event types; the HTTP server is in
`nanolab.serving.server`, the simulated engine in `nanolab.serving.simulated`.
"""

from nanolab.serving.engine import EngineFacts, SamplingSpec
from nanolab.serving.events import Reason
from nanolab.serving.requests import GenerationRequest
from nanolab.serving.worker import CancelAnswer, State, Worker, WorkerLimits

__all__ = [
    "CancelAnswer",
    "EngineFacts",
    "GenerationRequest",
    "Reason",
    "SamplingSpec",
    "State",
    "Worker",
    "WorkerLimits",
]
