"""Waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(
    condition: Callable[[], object], seconds: float = 200.0, otherwise: str = "the condition did not hold in time"
) -> None:
    """Return as soon as a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)
