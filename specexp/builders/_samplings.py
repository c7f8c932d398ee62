"""What dynamic builders know of a tree under construction: every sampling made so far, and every one that may follow.

A *sampling* is the decision to take one more candidate below a node. Its *key* decides whether it is worth it:

- drawn candidates: ``v``, the probability that the sampling is reached, ``w(parent) * (1 - q of the elder siblings)``
  (Xiong et al. 2024, eq. 11). It does not depend on the token about to be drawn, so nothing is pruned after drawing.
- the best candidates: the product of draft probabilities down to the node itself (appendix D.1).

``w(node)`` is that product. A node that has not been drafted yet is an expected first sampling of key ``w(node)``, a
drafted one an expected next sampling of key ``w * (1 - q of all its candidates)``; both bound what may still come.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specexp.drafters._base import Candidates, Request
from specexp.tree import NodeKind, TokenTree, TreeShape

_USED_UP = 1e-6  # a distribution whose candidates hold all but this has no further one


class Samplings:
    """Samplings of one tree.

    Args:
        root: last committed token.
        kind: of the candidates asked for.

    Attributes:
        key: ``[c]`` key of each sampling made.
        weight: ``[c]`` ``w`` of its node.
        depth: ``[c]`` its node's depth.
        drafted: ``[c]`` row of its node in the requests; ``-1`` while it was not drafted.
        open: ``[r]`` key of the next sampling below each drafted row; 0 where there is none.
    """

    def __init__(self, root: int, kind: NodeKind) -> None:
        self.kind = kind
        self.key = np.empty(0)
        self.weight = np.empty(0)
        self.depth = np.empty(0, dtype=np.int64)
        self.drafted = np.empty(0, dtype=np.int64)
        self._parent = np.empty(0, dtype=np.int64)  # [c] drafted row it hangs below
        self._rank = np.empty(0, dtype=np.int64)
        self._token = np.empty(0, dtype=np.int64)
        self._log_prob = np.empty(0, dtype=np.float32)
        # of drafted rows, the root first
        self.open = np.zeros(1)
        self._row_tokens = np.array([root])
        self._row_parents = np.array([-1])
        self._row_ranks = np.array([-1])
        self._row_weights = np.ones(1)
        self._row_depths = np.zeros(1, dtype=np.int64)
        self._row_counts = np.zeros(1, dtype=np.int64)  # candidates each row has
        self._q: dict[int, NDArray[np.float32]] = {}

    def row_counts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Candidates drafted rows have."""
        return self._row_counts[rows]

    def open_depths(self) -> NDArray[np.int64]:
        """``[r]`` depth of the next sampling below each drafted row."""
        return self._row_depths + 1

    def draft(self, samplings: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the nodes of these samplings rows of their own; they are to be asked for next."""
        first, zeros = self._row_tokens.size, np.zeros(samplings.size)
        rows = np.arange(first, first + samplings.size)
        self.drafted[samplings] = rows
        self._row_tokens = np.concatenate((self._row_tokens, self._token[samplings]))
        self._row_parents = np.concatenate((self._row_parents, self._parent[samplings]))
        self._row_ranks = np.concatenate((self._row_ranks, self._rank[samplings]))
        self._row_weights = np.concatenate((self._row_weights, self.weight[samplings]))
        self._row_depths = np.concatenate((self._row_depths, self.depth[samplings]))
        self._row_counts = np.concatenate((self._row_counts, zeros.astype(np.int64)))
        self.open = np.concatenate((self.open, zeros))
        return rows

    def request(self, rows: NDArray[np.int64], k: int, floor: float) -> Request:
        """Ask for candidates of drafted rows.

        Args:
            rows: of them, new or asked before.
            k: candidates of each at most.
            floor: samplings of a lower key are not wanted; at least one of each row is.
        """
        enough = None
        if self.kind is not NodeKind.POINT_MASS and floor > 0:
            enough = np.maximum(1.0 - floor / self._row_weights[rows], 0.0) + _USED_UP
        return Request(self._row_tokens, self._row_parents, self._row_ranks, rows, k, self.kind, enough)

    def add(self, rows: NDArray[np.int64], answer: Candidates, k: int) -> None:
        """Take the answer for drafted rows; it replaces what was known of their candidates' number.

        Args:
            rows: as asked.
            answer: ``[f, j]`` candidates, those of an earlier answer first.
            k: as asked.
        """
        assert answer.log_probs is not None, (
            "dynamic builders are composed with drafters that give probabilities"
        )
        there = answer.tokens >= 0  # [f, j]
        probability = np.where(there, np.exp(answer.log_probs, dtype=np.float64), 0.0)
        weight = self._row_weights[rows][:, np.newaxis] * probability
        mass = probability.cumsum(axis=1)
        if self.kind is NodeKind.POINT_MASS:
            key = weight
        else:
            key = self._row_weights[rows][:, np.newaxis] * np.maximum(1.0 - (mass - probability), 0.0)
        count = there.sum(axis=1)
        fresh = there & (np.arange(there.shape[1]) >= self._row_counts[rows][:, np.newaxis])
        number, rank = np.nonzero(fresh)
        self.key = np.concatenate((self.key, key[fresh]))
        self.weight = np.concatenate((self.weight, weight[fresh]))
        self.depth = np.concatenate((self.depth, self._row_depths[rows[number]] + 1))
        self.drafted = np.concatenate((self.drafted, np.full(number.size, -1)))
        self._parent = np.concatenate((self._parent, rows[number]))
        self._rank = np.concatenate((self._rank, rank))
        self._token = np.concatenate((self._token, answer.tokens[fresh]))
        self._log_prob = np.concatenate((self._log_prob, answer.log_probs[fresh]))
        self._set_open(rows, probability, count, k)
        self._row_counts[rows] = count
        if answer.q is not None:
            self._q.update(zip(rows.tolist(), answer.q, strict=True))

    def _set_open(
        self, rows: NDArray[np.int64], probability: NDArray[np.float64], count: NDArray[np.int64], k: int
    ) -> None:
        """What the next candidate of each row can be worth."""
        left = np.maximum(1.0 - probability.sum(axis=1), 0.0)
        more = (left > _USED_UP) & (count > self._row_counts[rows])
        if self.kind is NodeKind.POINT_MASS:
            more &= count == k
            if probability.shape[1]:
                left = np.minimum(left, probability[np.arange(rows.size), np.maximum(count - 1, 0)])
        self.open[rows] = np.where(more, self._row_weights[rows] * left, 0.0)

    def best(self, count: int) -> NDArray[np.int64]:
        """The ``count`` samplings of the largest keys; equal ones by depth, then rank path. They form a tree."""
        if self.key.size <= count:
            return np.arange(self.key.size)
        cut = np.partition(self.key, -count)[-count]
        sure, tied = np.flatnonzero(self.key > cut), np.flatnonzero(self.key == cut)
        wanted = count - sure.size
        if tied.size > wanted:
            tied = np.array(sorted(tied.tolist(), key=self._place)[:wanted], dtype=np.int64)
        return np.concatenate((sure, tied))

    def _place(self, sampling: int) -> tuple[int, tuple[int, ...]]:
        """Depth and rank path of a sampling's node: an order that does not depend on when it was found."""
        ranks, row = [int(self._rank[sampling])], int(self._parent[sampling])
        while row > 0:
            ranks.append(int(self._row_ranks[row]))
            row = int(self._row_parents[row])
        return len(ranks), tuple(reversed(ranks))

    def tree(self, root: int, chosen: NDArray[np.int64]) -> TokenTree:
        """The tree of these samplings, breadth first, siblings by rank.

        Args:
            root: last committed token.
            chosen: a closed set: with a sampling its parent's and its elder siblings'.
        """
        size = chosen.size + 1
        parents, tokens = np.full(size, -1), np.full(size, root)
        ranks, log_probs = np.full(size, -1), np.zeros(size, dtype=np.float32)
        new_row = np.full(self._row_tokens.size, -1)  # of drafted rows
        new_row[0] = 0
        depth = self.depth[chosen]
        start = 1
        for level in range(1, int(depth.max(initial=0)) + 1):
            here = chosen[depth == level]
            above = new_row[self._parent[here]]
            order = np.lexsort((self._rank[here], above))
            here, above = here[order], above[order]
            rows = np.arange(start, start + here.size)
            parents[rows], tokens[rows] = above, self._token[here]
            ranks[rows], log_probs[rows] = self._rank[here], self._log_prob[here]
            drafted = self.drafted[here]
            new_row[drafted[drafted >= 0]] = rows[drafted >= 0]
            start += here.size
        shape = TreeShape(parents, ranks)
        if self.kind is NodeKind.POINT_MASS:
            return TokenTree(shape, tokens, log_probs)
        q = {
            int(new_row[row]): values
            for row, values in self._q.items()
            if new_row[row] >= 0 and shape.children[int(new_row[row])]
        }
        return TokenTree(shape, tokens, log_probs, np.full(size, self.kind, dtype=np.int8), q)
