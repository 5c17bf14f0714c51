"""What functions with torch's signatures raise."""

from __future__ import annotations


class CallError(ValueError, RuntimeError):
    """A wrong call: a ValueError, as everywhere in foveal, and a RuntimeError, as torch's own functions raise."""
