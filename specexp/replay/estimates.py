"""What the target would have said after tokens that were not recorded: what it said after the same two elsewhere,
or after the same one.

Of the turn itself only what hangs off an earlier place of the answer is taken: what comes later would tell the future.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from specexp.replay.trie import NOWHERE
from specexp.replay.turn import RecordedTurn

Answer = tuple[NDArray[np.int32], NDArray[np.float32]]
_TOKEN_BITS = 32


class Estimates:
    """Recorded answers of the target, by the last two tokens and by the last one.

    Args:
        turns: of a recording.
    """

    def __init__(self, turns: Iterable[RecordedTurn]) -> None:
        self._turns = {turn.key: _Places(turn) for turn in turns}
        self._last: dict[int, Answer] = {}  # of all turns, by one token or two
        for places in self._turns.values():
            for key, nodes in places.nodes.items():
                self._last[key] = places.turn.trie.target[nodes[-1]]

    def after(self, turn: RecordedTurn, root: int, parent: int, token: int) -> Answer | None:
        """An answer after ``parent`` and ``token``, or after ``token`` alone; None where neither was ever fed.

        Args:
            turn: that is replayed.
            root: how many of its new tokens are committed.
            parent: the token before.
            token: the last one.
        """
        places = self._turns[turn.key]
        for key in ((parent + 1) << _TOKEN_BITS | token, token):
            node = places.before(key, root)
            if node != NOWHERE:
                return turn.trie.target[node]
            if key in self._last and not places.holds(key):
                return self._last[key]
        return None


class _Places:
    """Where in one turn each token, and each two, were answered.

    Attributes:
        nodes: by key, in the order of the places they hang off.
    """

    def __init__(self, turn: RecordedTurn) -> None:
        self.turn = turn
        self.nodes: dict[int, list[int]] = {}
        self._offs: dict[int, list[int]] = {}
        trie = turn.trie
        parents, tokens, counts = trie.parents.tolist(), trie.tokens.tolist(), trie.target.counts.tolist()
        off = list(range(len(parents)))  # spine node that each hangs off
        for node in range(trie.spine + 1, len(parents)):
            off[node] = off[parents[node]]
        for node in sorted(range(1, len(parents)), key=off.__getitem__):
            if counts[node] == 0:
                continue
            token = tokens[node]
            for key in ((tokens[parents[node]] + 1) << _TOKEN_BITS | token, token):
                self.nodes.setdefault(key, []).append(node)
                self._offs.setdefault(key, []).append(off[node])

    def holds(self, key: int) -> bool:
        """Whether it was answered anywhere in the turn."""
        return key in self.nodes

    def before(self, key: int, root: int) -> int:
        """The last node that hangs off the answer's first ``root`` tokens."""
        offs = self._offs.get(key)
        place = 0 if offs is None else bisect_right(offs, root)
        return self.nodes[key][place - 1] if place else NOWHERE
