"""Which rank paths lead along the output, counted at all positions of a recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specexp.core.tree import RankPath
from specexp.replay.play.ranks import MISSED, RankTable


@dataclass(frozen=True)
class RankPathHits:
    """How often each rank path is a piece of the output, whether a run comes by that position or not.

    A path is hit at least as often as what continues it, so the most-hit paths always form a tree.

    Attributes:
        hits: positions below which the path holds the output's next tokens.
        positions: of all turns.
        prefix: mean number of tokens in the cache at a position.
        acceptance: share of the positions drafted at where the first, second, ... candidate is the output's token, then
            the share where none is.
    """

    hits: Counter[RankPath]
    positions: int
    prefix: float
    acceptance: tuple[float, ...]

    def tokens_per_step(self, paths: Iterable[Sequence[int]]) -> float:
        """Of a step at an average position with this tree, the bonus token included."""
        return 1.0 + sum(self.hits[tuple(path)] for path in paths) / self.positions

    @staticmethod
    def of_table(table: RankTable, max_depth: int) -> RankPathHits:
        """Of a draft model's candidates, whose ranks at one position do not depend on the path there.

        Args:
            table: of a recording; ranks from its ``width`` on count as missed, for no tree may ask for them.
            max_depth: longest path.
        """
        ranks = np.where(table.ranks < table.width, table.ranks, MISSED)
        hits: Counter[RankPath] = Counter()
        ends = np.minimum(table.room, table.left)  # longest path of use below each position
        roots = np.flatnonzero((ranks != MISSED) & (ends > 0))
        paths: list[RankPath] = [()]
        path = np.zeros(roots.size, dtype=np.int64)  # of each root, as an index into paths
        for depth in range(max_depth):
            if roots.size == 0:
                break
            found, path, counts = np.unique(
                path * table.width + ranks[roots + depth], return_inverse=True, return_counts=True
            )
            above = paths
            paths = [(*above[key // table.width], key % table.width) for key in found.tolist()]
            hits.update(dict(zip(paths, counts.tolist(), strict=True)))
            on = ends[roots] > depth + 1
            roots, path = roots[on], path[on]
            on = ranks[roots + depth + 1] != MISSED
            roots, path = roots[on], path[on]
        asked = ranks[table.room > 0]  # the last token wanted is the target's
        shares = (np.bincount(asked[asked != MISSED], minlength=1) / max(asked.size, 1)).tolist()
        return RankPathHits(
            hits,
            table.positions,
            float(table.prefixes.mean()),
            (*shares, max(0.0, 1.0 - sum(shares))),
        )

    @staticmethod
    def of_paths(paths: Sequence[RankPath], prefix: float) -> RankPathHits:
        """Of the longest rank path along the output at every position, where ranks depend on the path there.

        Args:
            paths: one a position; ``()`` where no candidate is the output's token.
            prefix: mean number of tokens in the cache at a position.
        """
        hits: Counter[RankPath] = Counter()
        for path in paths:
            hits.update(path[:length] for length in range(1, len(path) + 1))
        first = Counter(path[0] for path in paths if path)
        shares = [first[rank] / len(paths) for rank in range(max(first, default=0) + 1)]
        return RankPathHits(hits, len(paths), prefix, (*shares, max(0.0, 1.0 - sum(shares))))
