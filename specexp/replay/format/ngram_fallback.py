"""What the target would have said after tokens that were not recorded: what it said after the same two tokens, or after
the last one alone, as near to that place as there is such an answer.

An answer after drafted tokens may be taken from a later place too: it says what the target makes of them there, not
what the output is. Answers along the output itself are taken from earlier places alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.trie import NOWHERE

Answer = tuple[NDArray[np.int32], NDArray[np.float32]]
Gram = tuple[int, ...]
LONGEST = 2
"""Tokens that an estimate may have in common with what is asked."""


class NgramFallback:
    """Recorded answers of the target, by the last tokens they follow.

    Args:
        turns: All turns of a recording.
    """

    def __init__(self, turns: Iterable[RecordedTurn]) -> None:
        self._turns = {turn.key: _Places(turn) for turn in turns}
        self._last: dict[Gram, list[tuple[_Places, int]]] = {}  # of the last two turns that have it
        for places in self._turns.values():
            for gram, nodes in places.nodes.items():
                self._last[gram] = [*self._last.get(gram, ())[-1:], (places, nodes[-1])]

    def after(self, turn: RecordedTurn, root: int, path: Gram) -> Answer | None:
        """The answer after the same last tokens, as many of them as were ever fed one after the other.

        Args:
            turn: The turn that is replayed.
            root: Number of its new tokens that are committed.
            path: The last tokens, at most :data:`LONGEST` of them matter.
        """
        own = self._turns[turn.key]
        for length in range(min(LONGEST, len(path)), 0, -1):
            gram = path[-length:]
            node = own.nearest(gram, root)
            if node != NOWHERE:
                return turn.trie.target[node]
            for places, other in self._last.get(gram, ())[::-1]:
                if places is not own:
                    return places.turn.trie.target[other]
        return None


class _Places:
    """Where in one turn tokens were answered that follow one another.

    Attributes:
        nodes: Nodes by the tokens that lead to them, in the order of the places they hang off.
    """

    def __init__(self, turn: RecordedTurn) -> None:
        self.turn = turn
        self.nodes: dict[Gram, list[int]] = {}
        self._offs: dict[Gram, list[int]] = {}
        trie = turn.trie
        parents, tokens, counts = trie.parents.tolist(), trie.tokens.tolist(), trie.target.counts.tolist()
        off = list(range(len(parents)))  # spine node that each hangs off
        for node in range(trie.spine + 1, len(parents)):
            off[node] = off[parents[node]]
        for node in sorted(range(1, len(parents)), key=off.__getitem__):
            if counts[node]:
                gram = tokens[parents[node]], tokens[node]
                for key in (gram, gram[1:]):
                    self.nodes.setdefault(key, []).append(node)
                    self._offs.setdefault(key, []).append(off[node])

    def nearest(self, gram: Gram, root: int) -> int:
        """The node that hangs off the place nearest to ``root``, the earlier of two; none of the output to come."""
        offs = self._offs.get(gram)
        if offs is None:
            return NOWHERE
        nodes, spine = self.nodes[gram], self.turn.trie.spine
        after = bisect_left(offs, root + 1)
        later = after
        while later < len(nodes) and nodes[later] <= spine:
            later += 1
        if later == len(nodes) or (after and root - offs[after - 1] <= offs[later] - root):
            return nodes[after - 1] if after else NOWHERE
        return nodes[later]
