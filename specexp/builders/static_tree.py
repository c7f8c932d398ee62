"""Static trees: the same rank paths in every step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.base.checked import Reference
from specexp.core.contracts import TreeBuilder
from specexp.core.dialogue import Build, Plan, Request, Selection, kind_of
from specexp.core.tree import NO_CANDIDATE, NodeKind, TokenTree, TreeShape, root_tree


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes at one depth, grouped by parent."""

    parents: NDArray[np.int64]  # [f] rows one level up that have children
    rows: NDArray[np.int64]  # [m] rows at this depth
    parent_index: NDArray[np.int64]  # [m] index of each node's parent in `parents`
    ranks: NDArray[np.int64]  # [m] rank of each node among its parent's candidates
    candidates: int  # number of candidates to request for each parent


class FixedShape(TreeShape):
    """A shape that is used in many steps. Shapes cut from it are cached."""

    recurs = True

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels of this shape, each of which is filled by one request for tokens."""
        levels = []
        for depth in range(1, self.max_depth + 1):
            rows = np.flatnonzero(self.depths == depth)
            parents, index = np.unique(self.parents[rows], return_inverse=True)
            ranks = self.ranks[rows]
            levels.append(Level(parents, rows, index, ranks, int(ranks.max()) + 1))
        return tuple(levels)

    @override
    def select(self, keep: NDArray[np.bool_]) -> TreeShape:
        return self._selected(keep.tobytes())

    @lru_cache(maxsize=512)  # noqa: B019 - as in first_nodes
    def _selected(self, keep: bytes) -> TreeShape:
        nodes = keep.count(1) - 1
        first = keep.startswith(b"\1" * (nodes + 1))
        return self.first_nodes(nodes) if first else super().select(np.frombuffer(keep, dtype=np.bool_))

    @lru_cache(maxsize=512)  # noqa: B019 - shapes are few and live as long as their builder
    def first_nodes(self, nodes: int) -> FixedShape:
        """Return the shape of the root and the first ``nodes`` nodes, for drafts that a controller ends early."""
        return self._part(np.arange(self.parents.size) <= nodes)

    @lru_cache(maxsize=512)  # noqa: B019 - as in first_nodes
    def up_to_depth(self, max_depth: int) -> FixedShape:
        """Return the shape up to a depth, for the last steps of a sequence."""
        return self if max_depth >= self.max_depth else self._part(self.depths <= max_depth)

    def _part(self, keep: NDArray[np.bool_]) -> FixedShape:
        part = super().select(keep)
        fixed = FixedShape(part.parents, part.ranks)
        fixed.__dict__.update(part.__dict__)  # known depths and masks
        return fixed


MOST_NODES = 4096
_Number = TypeVar("_Number", np.int64, np.float32)


class StaticTree(TreeBuilder):
    """Fills a fixed shape with candidates, breadth first. A node without a candidate is omitted with its descendants.

    Args:
        rank_paths: rank path of every node, e.g. ``[[0], [1], [0, 0]]``. Every path's prefixes must be listed too,
            except the root. In a configuration, this can also be the path to a ``static-tree`` artifact, Medusa's or
            EAGLE's choices, a SAMD tree or a growmap.
        candidates: the drafter's ``top-k``, or tokens ``drawn`` one after another without replacement.

    Raises:
        ValueError: there is no path, or there are more than 4,096; a path is repeated, is empty, or lacks its parent;
            or candidates are drawn and an earlier sibling is missing.

    Example:
        >>> StaticTree([[0], [1], [0, 0]]).max_nodes
        3
    """

    shape: FixedShape
    max_nodes: int = 1
    max_candidates: int = 1

    def __init__(
        self,
        rank_paths: Annotated[list[list[int]], Reference("static-tree")],
        candidates: Selection = "top-k",
    ) -> None:
        if not rank_paths:
            raise ValueError("StaticTree must have at least one rank path, such as [[0]]")
        if len(rank_paths) > MOST_NODES:
            raise ValueError(f"{type(self).__name__} must have at most {MOST_NODES} rank paths, got {len(rank_paths)}")
        self.shape = FixedShape.from_rank_paths(rank_paths)
        self.max_nodes = self.shape.num_nodes
        self.max_candidates = int(self.shape.ranks.max()) + 1
        self.kind = kind_of(candidates)
        if candidates == "drawn":
            _check_no_draw_is_left_out(self.shape)

    @override
    def shape_of(self, plan: Plan) -> TreeShape | None:
        own = type(self).build is StaticTree.build  # a subclass may have its own rule
        return self._within(plan) if own and self.kind is NodeKind.POINT_MASS else None

    def _within(self, plan: Plan) -> FixedShape:
        shape = self.shape if plan.max_depth is None else self.shape.up_to_depth(plan.max_depth)
        if plan.max_nodes is not None and plan.max_nodes < shape.num_nodes:
            shape = shape.first_nodes(plan.max_nodes)
        return shape

    @override
    def build(self, root: int, plan: Plan) -> Build:
        shape = self._within(plan)
        if shape.num_nodes == 0:
            return root_tree(root)
        tokens = np.full(shape.num_nodes + 1, NO_CANDIDATE, dtype=np.int64)
        tokens[0] = root
        log_probs: NDArray[np.float32] | None = None
        q: dict[int, NDArray[np.float32]] = {}
        for level in shape.levels:
            parents = level.parents
            alive = tokens[parents] >= 0  # [f]
            whole = np.count_nonzero(alive) == alive.size
            if not whole:
                parents = parents[alive]
                if parents.size == 0:
                    break
            answer = yield Request(
                tokens, shape.parents, shape.ranks, parents, level.candidates, self.kind, log_probs=log_probs
            )
            if answer is None:
                break
            where = level.parent_index, level.ranks
            full = whole and answer.tokens.shape[1] == level.candidates
            offered = answer.tokens if full else _spread(answer.tokens, NO_CANDIDATE, alive, level.candidates)
            tokens[level.rows] = offered[where]
            if answer.log_probs is not None:
                if log_probs is None:
                    log_probs = np.zeros(tokens.size, dtype=np.float32)
                given = answer.log_probs if full else _spread(answer.log_probs, 0, alive, level.candidates)
                log_probs[level.rows] = given[where]
            if answer.q is not None:
                q |= zip(parents.tolist(), answer.q, strict=True)
        drafted = tokens >= 0
        kinds = np.full(tokens.size, self.kind, dtype=np.int8) if q else None
        tree = TokenTree(shape, tokens, log_probs, kinds, q or None)
        return tree if drafted.all() else tree.select(drafted)


def _spread(answer: NDArray[_Number], missing: float, alive: NDArray[np.bool_], width: int) -> NDArray[_Number]:
    """Return ``[f, width]`` values for all parents of a level, from a possibly narrower answer for the live parents."""
    found = np.full((alive.size, width), missing, dtype=answer.dtype)
    found[alive, : answer.shape[1]] = answer
    return found


def _check_no_draw_is_left_out(shape: TreeShape) -> None:
    # a token left out after it was drawn would change the distribution of its later siblings
    known = set(shape.rank_paths)
    for *parent, rank in shape.rank_paths[1:]:
        if rank > 0 and (*parent, rank - 1) not in known:
            raise ValueError(
                f"rank path {[*parent, rank]} needs its elder sibling {[*parent, rank - 1]} if candidates are "
                "drawn: list it too, or set candidates to top-k"
            )
