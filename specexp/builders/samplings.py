"""What dynamic builders know of a tree under construction: every sampling made so far, and every one that may follow.

A *sampling* is the decision to take one more candidate below a node. Its *key* decides whether it is worth it:

- drawn candidates: ``v``, the probability that the sampling is reached, ``w(parent) * (1 - q of the elder siblings)``
  (Xiong et al. 2024, eq. 11). It does not depend on the token about to be drawn, so nothing is pruned after drawing.
  That takes the probability ``r`` a token is drawn with, given its elder siblings, for the one it is accepted with;
  ``r ** acceptance_power`` may be closer to it, and then ``v`` is the product of what was accepted and rejected.
- the best candidates: the product of draft probabilities down to the node itself (appendix D.1).

``w(node)`` is that product. A node that has not been drafted yet is an expected first sampling of key ``w(node)``, a
drafted one an expected next sampling of key ``w * (1 - q of all its candidates)``; both bound what may still come.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specexp.core.parts import Candidates, Request
from specexp.core.tree import NodeKind, TokenTree, TreeShape

_ASKED_FIRST = 32  # best candidates several rows are asked for at first; more on demand, which costs no pass
_USED_UP = 1e-6  # a distribution whose candidates hold all but this has no further one

_SAMPLING = np.dtype(
    [
        ("key", np.float64),
        ("weight", np.float64),  # w of its node
        ("depth", np.int64),  # of its node
        ("drafted", np.int64),  # its node's row in the requests, -1 while it was not drafted
        ("parent", np.int64),  # row it hangs below
        ("rank", np.int64),
        ("token", np.int64),
        ("log_prob", np.float32),
    ]
)
_ROW = np.dtype(
    [
        ("token", np.int64),
        ("parent", np.int64),
        ("rank", np.int64),
        ("log_prob", np.float32),
        ("weight", np.float64),
        ("depth", np.int64),
        ("count", np.int64),  # candidates it was answered with
        ("open", np.float64),  # key of the next sampling below it; 0 where there is none
    ]
)


class _Table:
    """A structured array that grows in place; ``filled`` is a view of what is in it."""

    def __init__(self, dtype: np.dtype[np.void], room: int) -> None:
        self._array = np.zeros(room, dtype=dtype)
        self.filled = self._array[:0]

    def append(self, count: int) -> NDArray[np.void]:
        """A view of ``count`` new entries, to be filled in."""
        start = self.filled.size
        if start + count > self._array.size:
            larger = np.zeros(2 * (start + count), dtype=self._array.dtype)
            larger[:start] = self.filled
            self._array = larger
        self.filled = self._array[: start + count]
        return self.filled[start:]

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Forget the others."""
        kept = self.filled[which]
        self._array[: kept.size] = kept
        self.filled = self._array[: kept.size]


class Samplings:
    """Samplings of one tree.

    Args:
        root: last committed token.
        kind: how the candidates asked for are chosen.
        budget: most nodes of the tree.
        acceptance_power: power of a drawn candidate's probability; 1 is the paper's estimate.
    """

    def __init__(self, root: int, kind: NodeKind, budget: int, acceptance_power: float = 1.0) -> None:
        self.kind = kind
        self.acceptance_power = acceptance_power
        self.budget = budget
        self.lowest = 0.0  # key of the budget-th best sampling: nothing below it can enter the tree any more
        self._samplings = _Table(_SAMPLING, 4 * budget + 64)
        self._rows = _Table(_ROW, budget + 64)
        self._rows.append(1)[0] = (root, -1, -1, 0.0, 1.0, 0, 0, 0.0)
        self._q: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []  # rows [f] and theirs [f, V]

    def draft(self, samplings: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the nodes of these samplings rows of their own; they are to be asked for next."""
        first = self._rows.filled.size
        rows, chosen = self._rows.append(samplings.size), self._samplings.filled[samplings]
        for field in ("token", "parent", "rank", "log_prob", "weight", "depth"):
            rows[field] = chosen[field]
        rows["count"], rows["open"] = 0, 0.0
        new = np.arange(first, first + samplings.size)
        self._samplings.filled["drafted"][samplings] = new
        return new

    def request(self, rows: NDArray[np.int64], k: int, floor: float) -> Request:
        """Ask for candidates of drafted rows.

        Args:
            rows: drafted rows, new or asked before.
            k: most candidates of each.
            floor: samplings of a lower key are not wanted; at least one of each row is.
        """
        enough = None
        if self.kind is not NodeKind.POINT_MASS and floor > 0:
            enough = np.maximum(1.0 - floor / self._rows.filled["weight"][rows], 0.0) + _USED_UP
        known = self._rows.filled
        return Request(
            known["token"],
            known["parent"],
            known["rank"],
            rows,
            k,
            self.kind,
            enough,
            log_probs=known["log_prob"],
        )

    def candidates_to_ask(self, rows: NDArray[np.int64], floor: float) -> int:
        """How many candidates to ask for, so that rarely more are needed.

        Args:
            rows: drafted rows, asked before or not.
            floor: samplings of a lower key are not wanted.
        """
        if self.kind is not NodeKind.POINT_MASS:
            return self.budget  # drawing stops at the floor
        known = self._rows.filled[rows]
        # candidates of a row hold no more than its weight together, so no more than weight / floor of them matter
        matter = float(known["weight"].max(initial=0.0)) / floor if floor > 0 else np.inf
        first = self.budget if rows.size == 1 else _ASKED_FIRST
        return int(min(self.budget, matter + 1, max(first, 2 * int(known["count"].max(initial=0)))))

    def add(self, rows: NDArray[np.int64], answer: Candidates, k: int) -> None:
        """Take the answer for drafted rows, those of an earlier answer first.

        Args:
            rows: the rows that were asked about.
            answer: ``[f, j]`` candidates.
            k: the candidates that were asked for.
        """
        assert answer.log_probs is not None, (
            "dynamic builders are composed with drafters that give probabilities"
        )
        asked = self._rows.filled[rows]
        there = answer.tokens >= 0  # [f, j]
        fresh = there & (np.arange(there.shape[1]) >= asked["count"][:, np.newaxis])
        count = there.sum(axis=1)
        if self.kind is NodeKind.POINT_MASS:
            with np.errstate(divide="ignore"):
                needed = np.log(self.lowest / asked["weight"]) - _USED_UP
            fresh &= answer.log_probs >= needed[:, np.newaxis]  # spares most of the exponentials
            number, rank = np.nonzero(fresh)
            key = child = asked["weight"][number] * _probability(answer.log_probs[number, rank])
            last = _probability(answer.log_probs[np.arange(rows.size), count - 1])
            following = np.where(count == k, last, 0.0)  # no later candidate is better
        else:
            number, rank = np.nonzero(fresh)
            probability = np.zeros(there.shape)
            probability[there] = _probability(answer.log_probs[there])
            elder = np.zeros((rows.size, there.shape[1] + 1))
            elder[:, 1:] = probability.cumsum(axis=1)
            reached = np.maximum(
                1.0 - elder, 0.0
            )  # [f, j + 1] probability that all elder siblings are rejected
            # the last token there is may be rounded above what its elder siblings left
            accepted = np.minimum(probability, reached[:, :-1])  # [f, j] and then this one accepted
            if self.acceptance_power != 1.0:
                accepted, reached = self._calibrated(accepted, reached)
            key = asked["weight"][number] * reached[number, rank]
            child = asked["weight"][number] * accepted[number, rank]
            following = np.where(elder[:, -1] < 1.0 - _USED_UP, reached[:, -1], 0.0)
        table = self._rows.filled
        # an answer no longer than the last one is all there is; a tree has no more children than nodes
        more = (count > asked["count"]) & (count < self.budget)
        table["open"][rows] = np.where(more, asked["weight"] * following, 0.0)
        table["count"][rows] = count
        enters = key >= self.lowest
        number, rank = number[enters], rank[enters]
        new = self._samplings.append(number.size)
        new["key"], new["weight"] = key[enters], child[enters]
        new["depth"] = asked["depth"][number] + 1
        new["drafted"] = -1
        new["parent"], new["rank"] = rows[number], rank
        new["token"], new["log_prob"] = answer.tokens[number, rank], answer.log_probs[number, rank]
        known = self._samplings.filled["key"]
        if known.size > self.budget:
            self.lowest = float(np.partition(known, -self.budget)[-self.budget])
        if answer.q is not None:
            self._q.append((rows, answer.q))

    def _calibrated(
        self, accepted: NDArray[np.float64], reached: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The same with the acceptance of each candidate, given that it is tried, raised to the power."""
        tried = np.maximum(reached[:, :-1], np.finfo(np.float64).tiny)
        acceptance = (accepted / tried) ** self.acceptance_power
        reached = np.concatenate((np.ones((reached.shape[0], 1)), (1.0 - acceptance).cumprod(axis=1)), axis=1)
        return reached[:, :-1] * acceptance, reached

    def open_above(self, floor: float) -> NDArray[np.int64]:
        """Drafted rows whose next sampling has at least this key."""
        following = self._rows.filled["open"]
        return np.flatnonzero((following >= floor) & (following > 0))

    def waiting(self, max_depth: int) -> tuple[NDArray[np.int64], NDArray[np.int64], float]:
        """What has to be known before the best ``budget`` samplings are; forgets samplings that cannot be among them.

        Args:
            max_depth: nodes this deep are not drafted.

        Returns:
            Drafted rows that need more candidates, samplings whose node has to be drafted (best first), and a key
            below which no sampling is needed (0 while there are fewer than ``budget``).
        """
        if self._samplings.filled.size > 2 * self.budget:
            self._samplings.keep(self._samplings.filled["key"] >= self.lowest)
        known, rows = self._samplings.filled, self._rows.filled
        key, depth = known["key"], known["depth"]
        undrafted = np.flatnonzero((known["drafted"] < 0) & (depth < max_depth))
        first = known["weight"][undrafted]  # key of the first sampling below each
        following = rows["open"]
        keys = np.concatenate((key, first, following))
        cut = 0.0 if keys.size <= self.budget else float(np.partition(keys, -self.budget)[-self.budget])
        if cut > 0 and np.count_nonzero(key >= cut) >= self.budget:
            # the tree is full: what waits at the cut itself enters only before the deepest one there
            deepest = depth[key == cut].max(initial=0)
            wanted = (first > cut) | ((first == cut) & (depth[undrafted] < deepest))
            more = (following > cut) | ((following == cut) & (rows["depth"] < deepest))
        else:
            wanted, more = (first >= cut) & (first > 0), (following >= cut) & (following > 0)
        chosen = undrafted[wanted]
        return np.flatnonzero(more), chosen[np.argsort(-first[wanted], kind="stable")], cut

    @property
    def size(self) -> int:
        """Samplings known."""
        return int(self._samplings.filled.size)

    def since(self, start: int, floor: float) -> NDArray[np.int64]:
        """Samplings added from number ``start`` on with at least this key, best first."""
        key = self._samplings.filled["key"][start:]
        order = np.argsort(-key, kind="stable")
        return start + order[: np.count_nonzero(key >= floor)]

    def weights(self, samplings: NDArray[np.int64]) -> NDArray[np.float64]:
        """``w`` of their nodes."""
        weights: NDArray[np.float64] = self._samplings.filled["weight"][samplings]
        return weights

    def best(self) -> NDArray[np.int64]:
        """Which samplings are the ``budget`` of the largest keys, equal ones by depth, then rank path; a closed set."""
        key = self._samplings.filled["key"]
        if key.size <= self.budget:
            return np.arange(key.size)
        cut = np.partition(key, -self.budget)[-self.budget]
        sure, tied = np.flatnonzero(key > cut), np.flatnonzero(key == cut)
        wanted = self.budget - sure.size
        if tied.size > wanted:
            tied = np.array(sorted(tied.tolist(), key=self._place)[:wanted], dtype=np.int64)
        return np.concatenate((sure, tied))

    def _place(self, sampling: int) -> tuple[int, tuple[int, ...]]:
        """Depth and rank path of a sampling's node: an order that does not depend on when it was found."""
        node, rows = self._samplings.filled[sampling], self._rows.filled
        ranks, row = [int(node["rank"])], int(node["parent"])
        while row > 0:
            ranks.append(int(rows["rank"][row]))
            row = int(rows["parent"][row])
        return len(ranks), tuple(reversed(ranks))

    def tree(self, chosen: NDArray[np.int64]) -> TokenTree:
        """The tree of these samplings, breadth first, siblings by rank.

        Args:
            chosen: a closed set: with a sampling its parent's and its elder siblings'.
        """
        nodes = self._samplings.filled[chosen]
        size = chosen.size + 1
        parents, tokens = np.full(size, -1), np.full(size, self._rows.filled["token"][0])
        ranks, log_probs = np.full(size, -1), np.zeros(size, dtype=np.float32)
        values = np.ones(size)
        new_row = np.full(self._rows.filled.size, -1)  # of drafted rows
        new_row[0] = 0
        start = 1
        for depth in range(1, int(nodes["depth"].max(initial=0)) + 1):
            here = nodes[nodes["depth"] == depth]
            above = new_row[here["parent"]]
            order = np.lexsort((here["rank"], above))
            here = here[order]
            rows = slice(start, start + here.size)
            parents[rows], tokens[rows] = above[order], here["token"]
            ranks[rows], log_probs[rows], values[rows] = here["rank"], here["log_prob"], here["key"]
            drafted = here["drafted"] >= 0
            new_row[here["drafted"][drafted]] = np.arange(start, start + here.size)[drafted]
            start += here.size
        shape = TreeShape(parents, ranks)
        if self.kind is NodeKind.POINT_MASS:
            return TokenTree(shape, tokens, log_probs, values=values)
        q: dict[int, NDArray[np.float32]] = {}
        with_children = np.zeros(size + 1, dtype=np.bool_)  # the last one stands for rows outside the tree
        with_children[parents[1:]] = True
        for asked, distributions in self._q:
            placed = new_row[asked]
            for number in np.flatnonzero(with_children[placed]).tolist():
                q[int(placed[number])] = distributions[number]
        return TokenTree(shape, tokens, log_probs, np.full(size, self.kind, dtype=np.int8), q, values=values)


def _probability(log_probs: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.minimum(np.exp(log_probs, dtype=np.float64), 1.0)
