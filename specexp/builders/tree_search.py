"""Families of static trees: a parametric one, and the one fitted from recorded hits."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from specexp.builders.static_tree import StaticTree
from specexp.core.references import Reference
from specexp.core.tree import RankPath


class ParametricTree(StaticTree):
    """A family from chain to bush: the ``nodes`` rank paths with the highest score.

    The score of a path is the product over its depths of ``depth_decay * (rank + 1) ** -rank_decay``. A large
    ``rank_decay`` gives a chain; a small ``depth_decay`` gives a bush of depth 1.

    Args:
        nodes: nodes, the root not counted; fewer where depth and width leave no more.
        depth: deepest node allowed.
        rank_decay: how fast candidates lose value with their rank.
        depth_decay: how much of its value a continuation keeps at each depth.
        width: candidates a node may have.

    Example:
        >>> ParametricTree(nodes=3, depth=3, rank_decay=4.0).rank_paths
        [[0], [0, 0], [0, 0, 0]]
    """

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
                heapq.heappush(
                    heap, (cost * ((rank + 2) / (rank + 1)) ** -rank_decay, (*path[:-1], rank + 1))
                )
            if len(path) < depth:
                heapq.heappush(heap, (cost * depth_decay, (*path, 0)))
        super().__init__(paths)


class FittedTree(StaticTree):
    """The ``nodes`` most-hit rank paths of a recording: what a run accepted in a wide tree.

    A prefix is hit at least as often as what continues it, so the best paths always form a tree.

    Args:
        hits: how often each rank path was accepted, as a :class:`~specexp.bench.acceptance_counts.HitCounter` counts.
            In a configuration the path of the JSON file it wrote; a sweep that records them names it itself.
        nodes: nodes, the root not counted; fewer where fewer paths were ever hit.
        depth: deepest node allowed.

    Raises:
        ValueError: no path of this length was ever accepted.
    """

    def __init__(
        self,
        hits: Annotated[Mapping[RankPath, int], Reference("acceptance-counts")],
        nodes: Annotated[int, Field(ge=1, le=4096)] = 16,
        depth: Annotated[int, Field(ge=1, le=256)] = 8,
    ) -> None:
        super().__init__(most_hit_paths(hits, nodes, depth))


def most_hit_paths(hits: Mapping[RankPath, int], nodes: int, depth: int) -> list[list[int]]:
    """The ``nodes`` most-hit rank paths at most ``depth`` long; ties go to the shorter, then lower-ranked path."""
    ranked = sorted(
        (path for path, count in hits.items() if count > 0 and len(path) <= depth),
        key=lambda path: (-hits[path], len(path), path),
    )
    if not ranked:
        raise ValueError(f"the hits record no accepted path of at most {depth} tokens: record more prompts")
    return [list(path) for path in ranked[:nodes]]
