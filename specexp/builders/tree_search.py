"""Families of static trees: a parametric family, and trees fitted to acceptance counts."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field

from specexp.base.checked import Reference
from specexp.builders.static_tree import MOST_NODES, StaticTree
from specexp.core.tree import RankPath


class ParametricTree(StaticTree):
    """A family of trees from chain to bush: the ``nodes`` rank paths with the highest scores.

    The score of a path is the product of ``depth_decay * (rank + 1) ** -rank_decay`` over its depths. A large
    ``rank_decay`` gives a chain; a small ``depth_decay`` gives a bush of depth 1.

    Args:
        nodes: number of nodes, not counting the root; fewer if ``depth`` and ``width`` do not allow that many.
        depth: maximum depth.
        rank_decay: exponent that controls how fast the score falls with the rank.
        depth_decay: factor by which the score falls with each level.
        width: maximum number of candidates per node.

    Example:
        >>> ParametricTree(nodes=3, depth=3, rank_decay=4.0).rank_paths
        [[0], [0, 0], [0, 0, 0]]
    """

    size_arguments = ("nodes", "depth", "width")

    def __init__(
        self,
        nodes: Annotated[int, Field(ge=1, le=4096)] = 16,
        depth: Annotated[int, Field(ge=1, le=256)] = 4,
        rank_decay: Annotated[float, Field(ge=0, le=16)] = 1.5,
        depth_decay: Annotated[float, Field(gt=0, le=1)] = 0.8,
        width: Annotated[int, Field(ge=1, le=64)] = 8,
    ) -> None:
        paths: list[list[int]] = []
        heap: list[tuple[float, RankPath]] = [(-depth_decay, (0,))]
        while heap and len(paths) < nodes:
            cost, path = heapq.heappop(heap)
            paths.append(list(path))
            rank = path[-1]
            if rank + 1 < width:
                heapq.heappush(heap, (cost * ((rank + 2) / (rank + 1)) ** -rank_decay, (*path[:-1], rank + 1)))
            if len(path) < depth:
                heapq.heappush(heap, (cost * depth_decay, (*path, 0)))
        super().__init__(paths)


class FittedTree(StaticTree):
    """The ``nodes`` rank paths that were accepted most often in a run with a wide tree.

    A prefix is accepted at least as often as its continuations, so the best paths always form a tree.

    Args:
        acceptance_counts: how often each rank path was accepted, from ``AcceptanceCounter``. In a configuration, the
            path to its JSON file; a sweep that counts acceptances sets the path.
        nodes: number of nodes, not counting the root; fewer if fewer paths were ever accepted. None selects the number
            that maximizes expected tokens per millisecond.
        depth: maximum depth.
        step_ms: milliseconds per step, keyed by number of rows (root and nodes); used if ``nodes`` is None. Times
            between entries are interpolated, and no tree exceeds the largest entry. In a configuration, the path to a
            JSON file; a sweep that counts acceptances measures the times and sets the path.

    Raises:
        ValueError: no path of at most ``depth`` tokens was ever accepted; or ``nodes`` is None, but ``step_ms`` or the
            number of steps (the count of the root ``()``) is missing.
    """

    size_arguments = ("nodes", "depth")

    def __init__(
        self,
        acceptance_counts: Annotated[Mapping[RankPath, int], Reference("acceptance-counts")],
        nodes: Annotated[int, Field(ge=1, le=4096)] | None = 16,
        depth: Annotated[int, Field(ge=1, le=256)] = 8,
        step_ms: Annotated[Mapping[int, float], Reference("step-costs")] | None = None,
    ) -> None:
        paths = most_accepted_paths(acceptance_counts, nodes or MOST_NODES, depth)
        if nodes is None:
            steps = acceptance_counts.get(())
            if not step_ms or not steps:
                raise ValueError("FittedTree must have nodes, or step_ms and the count of steps, got neither")
            paths = paths[: max(1, max(step_ms) - 1)]
            accepted = np.cumsum([acceptance_counts[tuple(path)] for path in paths])
            rows = sorted(step_ms)
            ms = np.interp(np.arange(2, len(paths) + 2), rows, [step_ms[row] for row in rows])
            paths = paths[: int(((1 + accepted / steps) / ms).argmax()) + 1]
        super().__init__(paths)


def most_accepted_paths(counts: Mapping[RankPath, int], nodes: int, depth: int) -> list[list[int]]:
    """Return the rank paths accepted most often. Ties go to the shorter path, then to the one with lower ranks."""
    ranked = sorted(
        (path for path, count in counts.items() if count > 0 and 0 < len(path) <= depth),
        key=lambda path: (-counts[path], len(path), path),
    )
    if not ranked:
        raise ValueError(f"the acceptance counts hold no accepted path of at most {depth} tokens: record more prompts")
    return [list(path) for path in ranked[:nodes]]
