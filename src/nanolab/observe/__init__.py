"""Recorders attached to a live engine: what the runner was given, what layer 0 computed, which route ran.

They wrap methods of one engine object and put nothing into its package; `detach()` leaves no trace.
"""

from .dims import ModelDims, model_dims
from .kv import KVCheck, KVProbe
from .routes import Route, RouteProbe, captured_graphs
from .runner import RunnerProbe, ShapeProbe, step_inputs
from .steps import StepRecorder

__all__ = [
    "KVCheck",
    "KVProbe",
    "ModelDims",
    "Route",
    "RouteProbe",
    "RunnerProbe",
    "ShapeProbe",
    "StepRecorder",
    "captured_graphs",
    "model_dims",
    "step_inputs",
]
