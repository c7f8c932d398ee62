"""Families of static trees: a parametric one, and the one fitted from recorded hits."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

import heapq
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from specexp.builders.static_tree import StaticTree
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
        hits: JSON file of hit counts, ``{"0": 120, "0,0": 55, ...}``, as a sweep's recording stage or
            :class:`specexp.bench.acceptance_counts.HitCounter` writes it.
        nodes: nodes, the root not counted; fewer where fewer paths were ever hit.
        depth: deepest node allowed.

    Raises:
        ValueError: the file is missing, is no such JSON, or records no hit.
    """

    def __init__(
        self,
        hits: str,
        nodes: Annotated[int, Field(ge=1, le=4096)] = 16,
        depth: Annotated[int, Field(ge=1, le=256)] = 8,
    ) -> None:
        super().__init__(most_hit_paths(read_hits(hits), nodes, depth))


def read_hits(path: str | Path) -> dict[RankPath, int]:
    """Read a hits file.

    Raises:
        ValueError: it cannot be read, or is not a JSON object of rank paths and counts.
    """
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
        return {tuple(int(rank) for rank in key.split(",")): int(count) for key, count in raw.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        if isinstance(error, OSError):
            raise ValueError(f"hits: {path} cannot be read ({error.strerror or error})") from error
        raise ValueError(f'hits: {path} is no JSON object such as {{"0": 12, "0,1": 3}} ({error})') from error


def most_hit_paths(hits: Mapping[RankPath, int], nodes: int, depth: int) -> list[list[int]]:
    """The ``nodes`` most-hit rank paths at most ``depth`` long; ties go to the shorter, then lower-ranked path."""
    ranked = sorted(
        (path for path, count in hits.items() if count > 0 and len(path) <= depth),
        key=lambda path: (-hits[path], len(path), path),
    )
    if not ranked:
        raise ValueError(f"the hits record no accepted path of at most {depth} tokens: record more prompts")
    return [list(path) for path in ranked[:nodes]]
