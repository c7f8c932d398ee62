"""A dynamic tree under construction: the samplings made so far, and those that may come next.

A *sampling* is the decision to take one more candidate below a node. Its *key* is an estimate of its value:

- drawn candidates: ``v``, the probability that the sampling is reached, ``w(parent) * (1 - q of earlier siblings)``
  (Xiong et al. 2024, eq. 11). It does not depend on the token about to be drawn, so nothing is pruned after drawing.
  The estimate assumes that a token is accepted with the probability ``r`` of drawing it, given its earlier siblings. If
  ``r ** acceptance_power`` is used instead, ``v`` is the product of acceptance and rejection probabilities.
- top-ranked candidates: the product of draft probabilities down to the node itself (appendix D.1).

``w(node)`` is the product of probabilities down to the node. A node that has not been drafted yet represents a possible
first sampling below it, with key ``w(node)``. A drafted node represents a possible next sampling, with key
``w * (1 - q of all its candidates)``. Both keys are upper bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specexp.core.dialogue import Candidates, Request
from specexp.core.tree import NodeKind, TokenTree, TreeShape


class Columns:
    """Named columns of equal length that can grow."""

    def __init__(self, columns: Mapping[str, type[np.generic]], room: int) -> None:
        self._columns: dict[str, NDArray[Any]] = {name: np.empty(room, dtype=kind) for name, kind in columns.items()}
        self._room = room
        self.size = 0

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the filled part of a column as a view."""
        return self._columns[name][: self.size]

    def append(self, entries: int, /, **values: Any) -> None:
        """Append entries to every column, given either one value for all entries or one per entry."""
        start = self.size
        self.size = self.size + entries
        if self.size > self._room:
            self._room = 2 * self.size
            self._columns = {name: np.resize(column, self._room) for name, column in self._columns.items()}
        for name, value in values.items():
            self._columns[name][start : self.size] = value

    def keep(self, which: NDArray[np.int64]) -> None:
        """Keep only these entries, in this order."""
        for column in self._columns.values():
            column[: which.size] = column[which]
        self.size = which.size


_ASKED_FIRST = 32  # top-ranked candidates in the first request for several rows; further ones cost no pass
_NARROW = 32  # most rows have at most this many drawn candidates
USED_UP = 1e-6  # a distribution with less mass left has no further candidate

SAMPLING: Mapping[str, type[np.generic]] = {
    "key": np.float64,
    "weight": np.float64,  # w of its node
    "depth": np.int64,  # of its node
    "drafted": np.int64,  # its node's row in the requests, -1 before it is drafted
    "parent": np.int64,  # row of its parent
    "rank": np.int64,
    "token": np.int64,
    "log_prob": np.float32,
}
ROW: Mapping[str, type[np.generic]] = {
    "token": np.int64,
    "parent": np.int64,
    "rank": np.int64,
    "log_prob": np.float32,
    "weight": np.float64,
    "depth": np.int64,
    "count": np.int64,  # candidates received
    "open": np.float64,  # key of the next sampling below it; 0 if there is none
}


class Samplings:
    """The samplings of one tree.

    Args:
        kind: whether candidates are top-ranked or drawn.
        budget: maximum number of nodes in the tree.
        acceptance_power: exponent of a drawn candidate's probability; 1 is the paper's estimate.
    """

    def __init__(self, root: int, kind: NodeKind, budget: int, acceptance_power: float = 1.0) -> None:
        self.kind = kind
        self.acceptance_power = acceptance_power
        self.budget = budget
        self.lowest = 0.0  # key of the budget-th best sampling: lower ones cannot enter the tree
        self._best = np.empty(0)  # keys of the best budget samplings, the lowest of them first
        self._samplings = Columns(SAMPLING, 4 * budget + 64)
        self._rows = Columns(ROW, budget + 64)
        self._rows.append(1, token=root, parent=-1, rank=-1, log_prob=0.0, weight=1.0, depth=0, count=0, open=0.0)
        self._q: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []  # rows [f] and their distributions [f, V]

    def draft(self, samplings: NDArray[np.int64]) -> NDArray[np.int64]:
        """Add a row for the node of each given sampling, and return the rows. Their candidates are requested next."""
        first, number = self._rows.size, samplings.size
        drafted = ("token", "parent", "rank", "log_prob", "weight", "depth")
        known = {name: self._samplings[name][samplings] for name in drafted}
        self._rows.append(number, **known, count=0, open=0.0)
        new = np.arange(first, first + number)
        self._samplings["drafted"][samplings] = new
        return new

    def request(self, rows: NDArray[np.int64], k: int, floor: float) -> Request:
        """Return a request for ``k`` candidates per drafted row. Those with a key below ``floor`` may be omitted."""
        enough = None
        if self.kind is not NodeKind.POINT_MASS and floor > 0:
            # v = w * (1 - q of the earlier siblings) falls below the floor when they hold this mass
            enough = np.maximum(1.0 - floor / self._rows["weight"][rows], 0.0) + USED_UP
        tokens, parents, ranks, log_probs = (self._rows[one] for one in ("token", "parent", "rank", "log_prob"))
        return Request(tokens, parents, ranks, rows, k, self.kind, enough, log_probs=log_probs)

    def candidates_to_ask(self, rows: NDArray[np.int64], floor: float) -> int:
        """Return how many candidates to request so that more are rarely needed."""
        if self.kind is not NodeKind.POINT_MASS:
            return self.budget  # drawing stops at the floor
        known = self._rows
        # keys below a row sum to at most its weight, so at most weight / floor of them reach the floor
        matter = float(known["weight"][rows].max(initial=0.0)) / floor if floor > 0 else np.inf
        first = self.budget if rows.size == 1 else _ASKED_FIRST
        return int(min(self.budget, matter + 1, max(first, 2 * int(known["count"][rows].max(initial=0)))))

    def add(self, rows: NDArray[np.int64], answer: Candidates, k: int) -> None:
        """Add ``[f, j]`` candidates for drafted rows. A row's new answer begins with its earlier candidates."""
        assert answer.log_probs is not None  # needs_log_probs
        weight, answered = self._rows["weight"][rows], self._rows["count"][rows]
        width = answer.tokens.shape[1]
        there = answer.tokens >= 0  # [f, j]
        count = np.full(rows.size, width) if there.all() else there.sum(axis=1)
        fresh = there
        if answered.any():
            fresh = there & (np.arange(width) >= answered[:, np.newaxis])
        if self.kind is NodeKind.POINT_MASS:
            with np.errstate(divide="ignore"):
                needed = np.log(self.lowest / weight) - USED_UP
            fresh = fresh & (answer.log_probs >= needed[:, np.newaxis])  # avoids most of the exponentials
            number, rank = _positions(fresh)
            key = child = weight[number] * probabilities(answer.log_probs[number, rank])
            last = probabilities(answer.log_probs[np.arange(rows.size), count - 1])
            following = np.where(count == k, last, 0.0)  # no later candidate is better
        else:
            number, rank = _positions(fresh)
            key = np.empty(number.size)
            child = np.empty(number.size)
            following = np.empty(rows.size)
            narrow = count <= _NARROW  # a few rows may have many times as many candidates as the others
            for group in (narrow, ~narrow):
                own, among = group[number], group.cumsum() - 1
                if group.any():
                    share, reached, following[group] = self._drawn(answer, group, int(count[group].max()))
                    place = among[number[own]], rank[own]
                    key[own], child[own] = reached[place], share[place]
            key *= weight[number]
            child *= weight[number]
        # a row has more candidates if its answer grew, and needs no more than the tree has nodes
        self._rows["open"][rows] = np.where((count > answered) & (count < self.budget), weight * following, 0.0)
        self._rows["count"][rows] = count
        enters = key >= self.lowest
        number, rank = number[enters], rank[enters]
        above = rows[number]
        self._samplings.append(
            number.size,
            key=key[enters],
            weight=child[enters],
            depth=self._rows["depth"][above] + 1,
            drafted=-1,
            parent=above,
            rank=rank,
            token=answer.tokens[number, rank],
            log_prob=answer.log_probs[number, rank],
        )
        self._best = _largest(np.concatenate((self._best, key[enters])), self.budget)
        if self._best.size == self.budget:
            self.lowest = float(self._best[0])
        if answer.q is not None:
            self._q.append((rows, answer.q))

    def _drawn(
        self, answer: Candidates, group: NDArray[np.bool_], width: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return probabilities for the drawn candidates of the ``g`` rows in ``group``, given that the row is reached.

        ``[g, width]``: acceptance probability of each candidate; ``[g, width + 1]``: probability that all earlier
        siblings are rejected; ``[g]``: probability that a further candidate is tried.
        """
        assert answer.log_probs is not None
        there = answer.tokens[group, :width] >= 0
        probability = np.zeros(there.shape)
        probability[there] = probabilities(answer.log_probs[group, :width][there])
        elder = np.zeros((there.shape[0], width + 1))
        elder[:, 1:] = probability.cumsum(axis=1)
        reached = np.maximum(1.0 - elder, 0.0)
        # rounding may put the last token above the mass that its earlier siblings left
        accepted = np.minimum(probability, reached[:, :-1])
        if self.acceptance_power != 1.0:
            accepted, reached = self._calibrated(accepted, reached)
        return accepted, reached, np.where(elder[:, -1] < 1.0 - USED_UP, reached[:, -1], 0.0)

    def _calibrated(
        self, accepted: NDArray[np.float64], reached: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Raise each candidate's acceptance probability, given that it is tried, to the power ``acceptance_power``."""
        tried = np.maximum(reached[:, :-1], np.finfo(np.float64).tiny)
        acceptance = (accepted / tried) ** self.acceptance_power
        reached = np.concatenate((np.ones((reached.shape[0], 1)), (1.0 - acceptance).cumprod(axis=1)), axis=1)
        return reached[:, :-1] * acceptance, reached

    def open_above(self, floor: float) -> NDArray[np.int64]:
        """Return the drafted rows that may still get a sampling with a key of at least ``floor``."""
        following = self._rows["open"]
        return np.flatnonzero((following >= floor) & (following > 0))

    def waiting(self, max_depth: int) -> tuple[NDArray[np.int64], NDArray[np.int64], float]:
        """Return the rows and samplings that may still change the tree. Nodes at ``max_depth`` are not extended.

        Returns:
            Drafted rows that need more candidates, samplings with a node yet to be drafted (best first), and the
            smallest key that can enter the tree. This key is 0 while there are fewer than ``budget`` samplings.
        """
        if self._samplings.size > self.budget + self.budget // 4:
            self._samplings.keep(np.flatnonzero(self._samplings["key"] >= self.lowest))
        known, rows = self._samplings, self._rows
        key, depth = known["key"], known["depth"]
        undrafted = np.flatnonzero((known["drafted"] < 0) & (depth < max_depth))
        first = known["weight"][undrafted]  # key of the first sampling below each
        following = rows["open"]
        bounds = np.concatenate((first, following))
        bounds = bounds[bounds >= self.lowest]
        keys = np.concatenate((self._best, bounds))
        full = self._best.size == self.budget
        cut = float(_largest(keys, self.budget)[0]) if full or keys.size > self.budget else 0.0
        if cut > 0 and np.count_nonzero(key >= cut) >= self.budget:
            # the tree is full: a node with the key of the cut enters only if it is shallower than the deepest there
            deepest = depth[key == cut].max(initial=0)
            wanted = (first > cut) | ((first == cut) & (depth[undrafted] < deepest))
            more = (following > cut) | ((following == cut) & (rows["depth"] < deepest))
        else:
            wanted = (first >= cut) & (first > 0)
            more = (following >= cut) & (following > 0)
        chosen = undrafted[wanted]
        return np.flatnonzero(more), chosen[np.argsort(-first[wanted], kind="stable")], cut

    @property
    def size(self) -> int:
        """Number of samplings."""
        return self._samplings.size

    def since(self, start: int, floor: float) -> NDArray[np.int64]:
        """Return the samplings from index ``start`` on that have a key of at least ``floor``, best first."""
        key = self._samplings["key"][start:]
        order = np.argsort(-key, kind="stable")
        return start + order[: np.count_nonzero(key >= floor)]

    def weights(self, samplings: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights ``w`` of the samplings' nodes."""
        weights: NDArray[np.float64] = self._samplings["weight"][samplings]
        return weights

    def best(self, floor: float = 0.0) -> NDArray[np.int64]:
        """Return up to ``budget`` samplings with the largest keys, all at least ``floor``. They form a closed set.

        Ties are broken by depth, then by rank path.
        """
        key = self._samplings["key"]
        if key.size <= self.budget:
            return np.flatnonzero(key >= floor)
        cut = np.partition(key, -self.budget)[-self.budget]
        sure, tied = np.flatnonzero(key > cut), np.flatnonzero(key == cut)
        wanted = self.budget - sure.size
        if tied.size > wanted:
            tied = np.array(sorted(tied.tolist(), key=self._place)[:wanted], dtype=np.int64)
        chosen = np.concatenate((sure, tied))
        return chosen[key[chosen] >= floor]

    def _place(self, sampling: int) -> tuple[int, tuple[int, ...]]:
        """Return the depth and rank path of a sampling's node: a sort key independent of when the node was found."""
        node, rows = self._samplings, self._rows
        ranks, row = [int(node["rank"][sampling])], int(node["parent"][sampling])
        while row > 0:
            ranks.append(int(rows["rank"][row]))
            row = int(rows["parent"][row])
        return len(ranks), tuple(reversed(ranks))

    def tree(self, chosen: NDArray[np.int64]) -> TokenTree:
        """Return the tree of a closed set of samplings, in breadth-first order, with siblings sorted by rank."""
        nodes = self._samplings
        size = chosen.size + 1
        chosen, parents, new_row = self._ordered(chosen)
        tokens, ranks = np.full(size, self._rows["token"][0]), np.full(size, -1)
        log_probs, values = np.zeros(size, dtype=np.float32), np.ones(size)
        tokens[1:], ranks[1:] = nodes["token"][chosen], nodes["rank"][chosen]
        log_probs[1:], values[1:] = nodes["log_prob"][chosen], nodes["key"][chosen]
        shape = TreeShape(parents, ranks)
        if self.kind is NodeKind.POINT_MASS:
            return TokenTree(shape, tokens, log_probs, values=values)
        q: dict[int, NDArray[np.float32]] = {}
        with_children = np.zeros(size + 1, dtype=np.bool_)  # the last entry is for rows outside the tree
        with_children[parents[1:]] = True
        for rows, distributions in self._q:
            placed = new_row[rows]
            for number in np.flatnonzero(with_children[placed]).tolist():
                q[int(placed[number])] = distributions[number]
        return TokenTree(shape, tokens, log_probs, np.full(size, self.kind, dtype=np.int8), q, values=values)

    def _ordered(self, chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Sort a closed set in breadth-first order, with siblings sorted by rank.

        Return the ``[n]`` samplings, the ``[n + 1]`` parents of the tree's rows, and each drafted row's index in the
        tree. The last array is -1 for rows outside the tree and in an extra final entry, so that -1 maps to itself.
        """
        nodes = self._samplings
        size = chosen.size + 1
        chosen = chosen[np.argsort(nodes["depth"][chosen], kind="stable")]
        layers = np.bincount(nodes["depth"][chosen]).tolist()  # nodes of each depth
        above, rank, drafted = (nodes[name][chosen] for name in ("parent", "rank", "drafted"))
        widest = int(rank.max(initial=0)) + 1
        parents, order = np.full(size, -1), np.empty(size - 1, dtype=np.int64)
        new_row = np.full(self._rows.size + 1, -1)
        new_row[0] = 0
        start = 0
        for count in layers[1:]:
            here = slice(start, start + count)
            placed = new_row[above[here]]
            ordered = np.argsort(placed * widest + rank[here])
            order[here] = start + ordered
            parents[start + 1 : start + count + 1] = placed[ordered]
            new_row[drafted[here][ordered]] = np.arange(start + 1, start + count + 1)
            new_row[-1] = -1
            start += count
        return chosen[order], parents, new_row


def _largest(keys: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the ``count`` largest keys. If any key is left out, the smallest returned key comes first."""
    surplus = keys.size - count
    return keys if surplus < 0 else np.partition(keys, surplus)[surplus:]


def _positions(wanted: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and columns of the true entries, ten times as fast as a two-dimensional ``np.nonzero``."""
    positions = wanted.ravel().nonzero()[0]
    row = positions // wanted.shape[1]
    return row, positions - row * wanted.shape[1]


def probabilities(log_probs: NDArray[np.float32]) -> NDArray[np.float64]:
    """Convert log-probabilities, which rounding may have raised above 0, to probabilities."""
    return np.minimum(np.exp(log_probs, dtype=np.float64), 1.0)
