"""What the manual's own checks raise."""

from __future__ import annotations

from nanolab.errors import LabError


class ManualError(LabError):
    """A page, a command section or a lock file says something that cannot be honoured."""
