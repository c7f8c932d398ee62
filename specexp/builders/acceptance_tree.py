"""The most valuable trees for a positional acceptance vector, of every size and depth (Chen et al. 2024, section 3)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from specexp.core.tree import RankPath


class BestTrees:
    """Dynamic programme over rows, depth and width.

    The value of a tree is the sum over its rows, the root's 1 included, of the product of acceptance probabilities
    down to it: the expected tokens of a step. With ``best[d][m]`` the largest value of a tree of at most ``m`` rows
    and depth ``d``, and ``forest[d][k][m]`` that of ``k`` children and all below them in at most ``m`` rows::

        forest[d][k][m] = max over j of  forest[d][k - 1][m - j] + acceptance[k - 1] * best[d - 1][j]
        best[d][m] = 1 + max over k of  forest[d][k][m - 1]

    The children of a node hold the first positions without a gap, and nothing is assumed of the vector: a later
    position may be likelier than an earlier one, where taking the best path products first would be wrong.

    Args:
        acceptance: probability that the first, second, ... child tried below a visited node is the accepted one.
        budget: most nodes asked for later, the root not counted.
    """

    def __init__(self, acceptance: tuple[float, ...], budget: int) -> None:
        self._acceptance = acceptance
        self._budget = budget
        self._best: list[NDArray[np.float64]] = [np.ones(budget + 2)]  # [depth][rows]; no tree has 0 rows
        self._forest: list[NDArray[np.float64]] = [np.zeros((1, budget + 1))]  # [depth][children, rows]
        self._complete = False

    def values(self, depth: int) -> NDArray[np.float64]:
        """``[budget + 1]`` value of the best tree of at most 0, 1, ... ``budget`` nodes and this depth."""
        return self._best[self.useful_depth(depth)][1:]

    def useful_depth(self, depth: int) -> int:
        """The least depth beyond which, up to ``depth``, no tree of the budget gains anything."""
        while not self._complete and len(self._best) <= depth:
            self._add_depth()
        return min(depth, len(self._best) - 1)

    def paths(self, nodes: int, depth: int) -> list[RankPath]:
        """Rank paths of a best tree of at most ``nodes`` nodes and this depth; fewer nodes where more gain nothing."""
        found: list[RankPath] = []
        waiting: list[tuple[RankPath, int, int]] = [((), nodes, self.useful_depth(depth))]
        while waiting:
            path, left, levels = waiting.pop()
            forest = self._forest[levels]
            for child in range(int(forest[:, left].argmax()), 0, -1):
                options = (
                    forest[child - 1, :left][::-1] + self._below(child, levels)[1 : left + 1]
                )  # j = 1..left
                rows = int(options.argmax()) + 1
                found.append((*path, child - 1))
                waiting.append((found[-1], rows - 1, levels - 1))
                left -= rows
        return found

    def _below(self, child: int, depth: int) -> NDArray[np.float64]:
        """``[budget + 2]`` what the child in this place, counted from 1, is worth with so many rows."""
        return self._acceptance[child - 1] * self._best[depth - 1]

    def _add_depth(self) -> None:
        depth, rows = len(self._best), self._budget + 1
        forest = np.full((len(self._acceptance) + 1, rows), -np.inf)
        forest[0] = 0.0
        sums = np.empty((rows - 1, rows - 1))
        for child in range(1, len(forest)):
            padded = np.full(2 * rows - 3, -np.inf)  # best of 1..budget rows, after what is too few
            padded[rows - 2 :] = self._below(child, depth)[1:rows]
            with_j = sliding_window_view(padded, rows - 1)[:, ::-1]  # [m - 1, m - j]
            np.add(with_j, forest[child - 1, :-1], out=sums)
            sums.max(axis=1, out=forest[child, 1:])
        best = np.ones(rows + 1)
        best[1:] = 1.0 + forest.max(axis=0)
        if np.array_equal(best, self._best[-1]):
            self._complete = True
            return
        self._forest.append(forest)
        self._best.append(best)


@lru_cache(maxsize=16)
def best_trees(acceptance: tuple[float, ...], budget: int) -> BestTrees:
    """The trees of one vector, remembered: a search asks for the same again and again."""
    return BestTrees(acceptance, budget)
