"""When a continuation has fallen into a loop. Loops flatter every drafting method, so their share is always
shown."""

from __future__ import annotations

from collections.abc import Sequence

MAX_PERIOD = 32
MIN_TAIL = 24


def loops(token_ids: Sequence[int]) -> bool:
    """Whether the last ``max(24, 3 p)`` tokens repeat with some period ``p`` of at most 32 tokens.

    >>> loops([5, 6] * 12), loops([5, 6] * 11), loops(range(100))
    (True, False, False)
    """
    ids = list(token_ids)
    for period in range(1, MAX_PERIOD + 1):
        tail = max(MIN_TAIL, 3 * period)
        if len(ids) >= tail and ids[-tail:-period] == ids[len(ids) - tail + period :]:
            return True
    return False
