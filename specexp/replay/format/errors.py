"""What a recording cannot answer, in one sentence that says what to record."""

from __future__ import annotations


class RecordingError(ValueError):
    """A recording is damaged, foreign, or another one than the configuration needs."""


class NotRecordedError(RecordingError):
    """A question whose answer was not recorded."""
