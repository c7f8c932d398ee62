"""Slots of a target that keep their tokens: a prompt takes one with its prefix, so only its new tokens are fed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specexp.core.context import Context
from specexp.core.runtime import Runtime

Tokens = NDArray[np.int64]
_NO_TOKENS: Tokens = np.empty(0, dtype=np.int64)


class PrefixSlots:
    """The slots of a target, and the tokens that free ones still hold; without ``reuse`` none of them are used."""

    def __init__(self, target: Runtime, slots: int, *, reuse: bool = True) -> None:
        self._target = target
        self._reuse = reuse
        self._free = dict.fromkeys(range(slots), _NO_TOKENS)  # in the order in which they became free
        self._taken: dict[int, Context] = {}
        target.cache.reserve(0, slots)
        for slot in range(slots):
            target.cache.truncate(slot, 0)

    def take(self, prompt: Sequence[int], at_least: int = 1) -> tuple[int, int]:
        """Take a free slot and let it hold the longest prefix of a prompt that any slot holds.

        Args:
            prompt: token ids.
            at_least: tokens at the end that must still be fed; the last one is always fed with the first tree.

        Returns:
            The slot and its number of tokens.
        """
        wanted = np.asarray(prompt[: max(0, len(prompt) - at_least)], dtype=np.int64)
        if not self._reuse:
            wanted = _NO_TOKENS
        free = {slot: _common_prefix(wanted, tokens) for slot, tokens in self._free.items()}
        slot = max(free, key=lambda one: free[one])  # the oldest of the best
        taken = {
            other: _common_prefix(wanted, context.token_ids[: self._target.length(other)])
            for other, context in self._taken.items()
        }
        source = max(taken, key=lambda one: taken[one], default=slot)
        if taken.get(source, 0) > free[slot]:
            slot = next(iter(self._free))
            self._target.cache.fork(source, slot, taken[source])
        else:
            self._target.cache.truncate(slot, free[slot])
        del self._free[slot]
        return slot, self._target.length(slot)

    def occupy(self, slot: int, context: Context) -> None:
        """Record the sequence that a taken slot holds, so that others can share its prefix."""
        self._taken[slot] = context

    def free(self, slot: int, context: Context | None) -> None:
        """Free a slot with the committed tokens of its sequence, or empty if the sequence is None."""
        self._taken.pop(slot, None)
        length = 0 if context is None else self._target.length(slot)
        self._target.cache.truncate(slot, length)  # also drops uncommitted rows
        self._free[slot] = _NO_TOKENS if context is None else context.token_ids[:length].copy()


def _common_prefix(one: Tokens, other: Tokens) -> int:
    length = min(one.size, other.size)
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if differ.size else length
