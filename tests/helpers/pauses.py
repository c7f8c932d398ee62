"""A pause of a random length, alone and before each call of a drafter."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import sleep

from specexp.core.context import Context
from specexp.core.contracts import Drafter
from specexp.core.dialogue import Candidates, Request
from specexp.core.outcome import Outcome
from specexp.core.wrappers import DrafterWrapper


class Pause:
    """Sleeps for a random time on every call.

    Args:
        most_ms: longest time, in milliseconds.
        fails_at: number of the call, counted from 1, that raises RuntimeError instead of sleeping; None for no failure.
    """

    def __init__(self, most_ms: float, least_ms: float = 0.0, seed: int = 0, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self._range = least_ms / 1000, most_ms / 1000
        self._random = Random(seed)
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError(f"call {self.calls} was to fail")
        if self._range[1] > 0:
            sleep(self._random.uniform(*self._range))


class PausingDrafter(DrafterWrapper):
    """Wraps a drafter and pauses before each call to ``begin``, ``propose`` or ``observe``."""

    def __init__(self, drafter: Drafter, pause: Callable[[], None]) -> None:
        self.inner = (drafter,)
        self.pause = pause

    def begin(self, context: Context, prefill: Outcome | None) -> None:
        self.pause()
        super().begin(context, prefill)

    def propose(self, context: Context, request: Request) -> Candidates:
        self.pause()
        return self.inner[0].propose(context, request)

    def observe(self, outcome: Outcome) -> None:
        self.pause()
        super().observe(outcome)
