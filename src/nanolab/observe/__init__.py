"""Recorders attached to a live engine: what the runner was given, what layer 0 computed, which route ran.

They wrap methods of one engine object and put nothing into its package; `detach()` leaves no trace.
"""

from .runner import RunnerProbe, ShapeProbe, step_inputs

__all__ = ["RunnerProbe", "ShapeProbe", "step_inputs"]
