"""Lines about how far a verification is, with the time that is left at most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter

_SECONDS = 10.0
"""Between two lines."""


class TimeLeft:
    """Says every few seconds how much of something is done.

    Args:
        title: Of the composition.
        say: Takes a line.
    """

    def __init__(self, title: str, say: Callable[[str], None]) -> None:
        self._title = title
        self._say = say
        self._seconds: defaultdict[str, float] = defaultdict(float)  # spent on each thing
        self._last = self._said = perf_counter()

    def __call__(self, what: str, done: int, most: int) -> None:
        """So much of at most ``most`` is done."""
        now = perf_counter()
        self._seconds[what] += now - self._last
        self._last = now
        if now - self._said < _SECONDS or done >= most:
            return
        self._said = now
        left = self._seconds[what] / done * (most - done)
        self._say(f"{self._title}: {what}, {done:,} of at most {most:,}, at most {left:.0f} s left")
