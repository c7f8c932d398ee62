"""Slots of a target: a prompt gets one that holds its beginning, so that a chat's next turn feeds only new tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specexp.core.context import Context
from specexp.core.runtime import Runtime

Tokens = NDArray[np.int64]


class Places:
    """The slots of a target, their sequences, and the tokens that free slots still hold.

    With ``reuse`` these serve another prompt that begins with them.
    """

    def __init__(self, target: Runtime, slots: int, *, reuse: bool = True) -> None:
        self._target = target
        self._reuse = reuse
        self._held: dict[int, Tokens] = {
            slot: np.empty(0, dtype=np.int64) for slot in range(slots)
        }  # oldest first
        self._taken: dict[int, Context] = {}
        target.cache.reserve(0, slots)
        for slot in range(slots):
            target.cache.truncate(slot, 0)

    def take(self, prompt: Sequence[int], at_least: int = 1) -> tuple[int, int]:
        """Take a free slot that holds as much of a prompt's beginning as any slot does, and nothing else.

        Args:
            prompt: token ids.
            at_least: tokens of the prompt that must not be in the slot; the last is always fed with the first tree.

        Returns:
            The slot and how many tokens it holds.
        """
        wanted = np.asarray(prompt[: max(0, len(prompt) - at_least)], dtype=np.int64)
        if not self._reuse:
            wanted = wanted[:0]
        free = {slot: common(wanted, tokens) for slot, tokens in self._held.items()}
        slot = max(free, key=lambda one: free[one])  # among equals the oldest
        busy = {
            other: common(wanted, context.token_ids[: self._target.length(other)])
            for other, context in self._taken.items()
        }
        source = max(busy, key=lambda one: busy[one], default=slot)
        if busy.get(source, 0) > free[slot]:
            slot = next(iter(self._held))
            self._target.cache.fork(source, slot, busy[source])
        else:
            self._target.cache.truncate(slot, free[slot])
        del self._held[slot]
        return slot, self._target.length(slot)

    def occupy(self, slot: int, context: Context) -> None:
        """A sequence has the slot."""
        self._taken[slot] = context

    def free(self, slot: int, context: Context | None) -> None:
        """The slot's sequence goes; what is committed of it stays, or nothing where it is not known."""
        self._taken.pop(slot, None)
        length = self._target.length(slot) if context is not None else 0
        self._target.cache.truncate(slot, length)  # also what a pass left behind it
        tokens = np.empty(0, dtype=np.int64) if context is None else context.token_ids[:length].copy()
        self._held[slot] = tokens


def common(one: Tokens, other: Tokens) -> int:
    """Tokens that two sequences begin with together."""
    length = min(one.size, other.size)
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if differ.size else length
