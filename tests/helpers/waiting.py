"""Waiting until something is so, and no longer."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(
    condition: Callable[[], object], seconds: float = 200.0, otherwise: str = "it did not come to this"
) -> None:
    """Return as soon as a condition holds.

    Args:
        condition: asked again and again.
        seconds: after which the test fails.
        otherwise: what it says then.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)
