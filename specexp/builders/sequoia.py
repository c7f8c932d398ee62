"""Sequoia: the best static tree for measured acceptance rates and, if given, measured times (Chen et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Annotated

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import Field

from specexp.base.checked import Reference
from specexp.builders.static_tree import StaticTree
from specexp.core.dialogue import Selection
from specexp.core.tree import RankPath

Probability = Annotated[float, Field(ge=0, le=1)]
Above0 = Annotated[float, Field(gt=0)]

_SUM_TOLERANCE = 1e-3
_NEGLIGIBLE = 1e-12  # smaller values would be rounded away when added to the root's 1


class Sequoia(StaticTree):
    """The tree with the most expected tokens per step for a positional acceptance vector.

    The vector has ``W + 1`` entries: the probability that the first, second, ... ``W``-th child tried below a visited
    node is the accepted one, then the probability that none is. It depends on target, draft, verifier and
    ``candidates`` together, so it must be measured for each combination. Without times, the tree is the best one with
    at most ``budget`` nodes (section 3.1, by dynamic programming over nodes, depth and children). With times, the
    number of nodes and the depth are chosen too (section 3.3), to maximize the speedup within the limits::

        speedup = tokens per step * time of a target pass over 1 token
                  / (time of a target pass over 1 + nodes tokens + depth * time of a draft pass)

    The speedup may be below 1 if no tree pays off. :attr:`max_nodes` is the chosen number of nodes.

    Args:
        acceptance: the vector, e.g. ``[0.6, 0.15, 0.05, 0.2]``; in a configuration, also the path to a JSON file
            ``{"acceptance": [...]}``.
        budget: maximum number of nodes.
        max_depth: maximum depth.
        candidates: the drafter's ``top-k``, or tokens ``drawn`` without replacement.
        target_ms: milliseconds per target pass by number of tokens (root and nodes), as pairs ``[tokens, ms]`` from
            ``[1, ms]`` to at least ``budget + 1`` tokens. Times between two pairs are interpolated.
        draft_ms: milliseconds per draft pass; a tree takes one pass per level.
        buckets: whether a pass takes the time of the next larger pair, as if passes are padded to fixed sizes.

    Raises:
        ValueError: the vector's probabilities do not sum to 1 within 0.001, or accept no child; or only one of the
            times is given, or one is invalid.

    Example:
        >>> Sequoia(budget=4, acceptance=[0.6, 0.2, 0.2]).rank_paths
        [[0], [1], [0, 0], [0, 0, 0]]
    """

    size_arguments = ("budget", "max_depth")

    def __init__(
        self,
        acceptance: Annotated[list[Probability], Reference("acceptance-vector")],
        budget: Annotated[int, Field(ge=1, le=4096)] = 64,
        max_depth: Annotated[int, Field(ge=1, le=256)] | None = None,
        candidates: Selection = "drawn",
        target_ms: list[Annotated[list[Above0], Field(min_length=2, max_length=2)]] | None = None,
        draft_ms: Annotated[float, Field(ge=0)] | None = None,
        buckets: bool = False,
    ) -> None:
        if (target_ms is None) != (draft_ms is None):
            raise ValueError("Sequoia must have both target_ms and draft_ms, or neither, got one of them")
        self.predicted_speedup: float | None = None  # over plain decoding, by the given times; None without times
        trees = best_trees(_accepted(acceptance, budget), budget)
        nodes, depth = budget, budget if max_depth is None else max_depth
        if target_ms is not None and draft_ms is not None:
            pass_ms = _target_times(target_ms, budget, buckets)
            nodes, depth, self.predicted_speedup = _fastest(trees, depth, pass_ms, draft_ms)
        self.expected_tokens_per_step = float(trees.values(depth)[nodes])  # by the vector, with the bonus token
        super().__init__([list(path) for path in trees.paths(nodes, depth)], candidates=candidates)


def _accepted(vector: Sequence[float], width: int) -> tuple[float, ...]:
    if len(vector) < 2:
        raise ValueError(f"acceptance must have at least 2 numbers, such as [0.6, 0.4], got {len(vector)}")
    if abs(sum(vector) - 1) > _SUM_TOLERANCE:
        raise ValueError(f"acceptance must sum to 1 (within {_SUM_TOLERANCE:g}), got {sum(vector):.6g}")
    accepted = tuple(float(value) for value in vector[:-1][:width])
    if max(accepted) < _NEGLIGIBLE:
        raise ValueError(
            f"acceptance must be at least {_NEGLIGIBLE:g} for one of the first {len(accepted)} children: below "
            "that, no tree is worth its nodes"
        )
    return accepted


def _target_times(pairs: Sequence[Sequence[float]], budget: int, buckets: bool) -> NDArray[np.float64]:
    """Return ``[budget + 1]`` times in milliseconds, for target passes over the root and 0 to ``budget`` nodes."""
    tokens = [pair[0] for pair in pairs]
    if not tokens or tokens[0] != 1 or tokens[-1] < budget + 1:
        covers = f"{tokens[0]:g} to {tokens[-1]:g}" if tokens else "no"
        raise ValueError(f"target_ms must cover 1 to {budget + 1} tokens (budget + 1), got {covers} tokens")
    if any(later <= earlier for earlier, later in pairwise(tokens)):
        raise ValueError(f"target_ms: tokens must increase, got {tokens}")
    rows, ms = np.arange(1, budget + 2), np.array([pair[1] for pair in pairs])
    return ms[np.searchsorted(tokens, rows)] if buckets else np.interp(rows, tokens, ms)


def _fastest(trees: BestTrees, max_depth: int, pass_ms: NDArray[np.float64], draft_ms: float) -> tuple[int, int, float]:
    best = (0, 0, 0.0)
    for depth in range(1, trees.useful_depth(max_depth) + 1):
        values = trees.values(depth)
        speedups = values * pass_ms[0] / (pass_ms + depth * draft_ms)
        speedups[1:][values[1:] == values[:-1]] = 0.0  # more nodes do not raise the value here
        nodes = int(speedups[1:].argmax()) + 1
        if speedups[nodes] > best[2]:
            best = (nodes, depth, float(speedups[nodes]))
    return best


class BestTrees:
    """A dynamic program over rows, depth and width.

    The value of a tree is its expected number of tokens per step. Each row adds the product of the acceptance
    probabilities on its path, which is 1 for the root. ``best[d][m]`` is the largest value of a tree of at most ``m``
    rows and depth ``d``. ``forest[d][k][m]`` is the largest value of ``k`` subtrees with at most ``m`` rows in total::

        forest[d][k][m] = max over j of  forest[d][k - 1][m - j] + acceptance[k - 1] * best[d - 1][j]
        best[d][m] = 1 + max over k of  forest[d][k][m - 1]

    The children of a node always take the first positions. A later position may be more likely than an earlier one, so
    a greedy choice of the best path products would be wrong.

    Args:
        acceptance: probability that the first, second, ... child tried below a visited node is the accepted one.
        budget: maximum number of nodes of any tree requested later, not counting the root.
    """

    def __init__(self, acceptance: tuple[float, ...], budget: int) -> None:
        self._acceptance = acceptance
        self._budget = budget
        self._best: list[NDArray[np.float64]] = [np.ones(budget + 2)]  # [depth][rows]; no tree has 0 rows
        self._forest: list[NDArray[np.float64]] = [np.zeros((1, budget + 1))]  # [depth][children, rows]
        self._complete = False

    def values(self, depth: int) -> NDArray[np.float64]:
        """Return values ``[budget + 1]`` of the best trees up to this depth with at most 0, 1, ... ``budget`` nodes."""
        return self._best[self.useful_depth(depth)][1:]

    def useful_depth(self, depth: int) -> int:
        """Return the smallest depth at which trees are as good as at ``depth``."""
        while not self._complete and len(self._best) <= depth:
            self._add_depth()
        return min(depth, len(self._best) - 1)

    def paths(self, nodes: int, depth: int) -> list[RankPath]:
        """Return the rank paths of a best tree with at most ``nodes`` nodes, up to this depth."""
        found: list[RankPath] = []
        waiting: list[tuple[RankPath, int, int]] = [((), nodes, self.useful_depth(depth))]
        while waiting:
            path, left, levels = waiting.pop()
            forest = self._forest[levels]
            for child in range(int(forest[:, left].argmax()), 0, -1):
                # j = 1..left
                options = forest[child - 1, :left][::-1] + self._below(child, levels)[1 : left + 1]
                rows = int(options.argmax()) + 1
                found.append((*path, child - 1))
                waiting.append((found[-1], rows - 1, levels - 1))
                left -= rows
        return found

    def _below(self, child: int, depth: int) -> NDArray[np.float64]:
        """Return ``[budget + 2]`` values of a node's ``child``-th child (from 1), by number of rows in its subtree."""
        return self._acceptance[child - 1] * self._best[depth - 1]

    def _add_depth(self) -> None:
        depth, rows = len(self._best), self._budget + 1
        forest = np.full((len(self._acceptance) + 1, rows), -np.inf)
        forest[0] = 0.0
        sums = np.empty((rows - 1, rows - 1))
        for child in range(1, len(forest)):
            padded = np.full(2 * rows - 3, -np.inf)  # values of 1..budget rows; -inf below 1 row
            padded[rows - 2 :] = self._below(child, depth)[1:rows]
            with_j = sliding_window_view(padded, rows - 1)[:, ::-1]  # [m - 1, m - j]
            np.add(with_j, forest[child - 1, :-1], out=sums)
            sums.max(axis=1, out=forest[child, 1:])
        best = np.ones(rows + 1)
        best[1:] = 1.0 + forest.max(axis=0)  # the best number of children for each number of rows
        if np.array_equal(best, self._best[-1]):
            self._complete = True
            return
        self._forest.append(forest)
        self._best.append(best)


@lru_cache(maxsize=16)
def best_trees(acceptance: tuple[float, ...], budget: int) -> BestTrees:
    """Return the best trees for an acceptance vector. They are cached for repeated searches."""
    return BestTrees(acceptance, budget)
