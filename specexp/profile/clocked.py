"""Seconds that some methods of an object take."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any


class MethodClock:
    """Seconds spent in some methods of a part."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def taken(self) -> float:
        """Seconds since it was asked last."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method with the clock running."""

        def clocked(*arguments: Any, **named: Any) -> Any:
            started = perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self.seconds += perf_counter() - started

        return clocked


def clocked(part: object, *methods: str) -> MethodClock:
    """Put a clock around methods of one part."""
    clock = MethodClock()
    for name in methods:
        setattr(part, name, clock.around(getattr(part, name)))
    return clock
