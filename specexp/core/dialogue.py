"""Messages between parts: builders' requests, drafters' candidates, controllers' plans and verifiers' verdicts."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specexp.core.tree import NodeKind, RankPath, TokenTree


@dataclass(frozen=True, slots=True)
class Request:
    """A builder's request for ``k`` candidates after each frontier row of the tree so far.

    During one build, a row keeps its number, its parent and, once filled, its token.
    """

    tokens: NDArray[np.int64]  # [m] tokens of the tree so far, the root in row 0; negative if not yet filled
    parents: NDArray[np.int64]  # [m] parent row of each row, -1 for the root
    ranks: NDArray[np.int64]  # [m] rank of each row among its parent's candidates, -1 for the root
    rows: NDArray[np.int64]  # [f] the frontier: the filled rows after which candidates are requested
    k: int
    # whether candidates are top-ranked or drawn; an answer for a larger k starts with the answer for a smaller k
    kind: NodeKind = NodeKind.POINT_MASS
    # [f] probability mass at which a row has enough candidates; None requests all k. A drafter that draws may omit the
    # rest of such a row, and whole columns once every row has enough
    enough: NDArray[np.float64] | None = None
    # tokens per candidate; a value above 1 requests phrases, which only some drafters have
    length: int = 1
    log_probs: NDArray[np.float32] | None = None  # [m] draft log-probability given the parent, 0 for the root

    def depths(self) -> list[int]:
        """Return the depth of each of the ``f`` frontier rows; 0 for the root."""
        return [len(path) for path in self._paths()]

    def best_path(self) -> tuple[list[int], list[float]]:
        """Return the rows and log-probabilities of the most probable frontier path, deepest first; empty if unknown."""
        if self.log_probs is None:
            return [], []
        log_probs = self.log_probs.tolist()
        paths = [(path, [log_probs[node] for node in path]) for path in self._paths()]
        return max(paths, key=lambda path: sum(path[1]), default=([], []))

    def _paths(self) -> list[list[int]]:
        """Return one path per frontier row: the rows from the frontier row up to depth 1."""
        parents = self.parents.tolist()  # a Python loop: numpy's calls cost more for such small trees
        paths = []
        for row in self.rows.tolist():
            path = []
            while row > 0:
                path.append(row)
                row = parents[row]
            paths.append(path)
        return paths

    def rank_path(self, row: int) -> RankPath:
        """Return the ranks on the path from depth 1 down to ``row``; empty for the root."""
        return self._along(self.ranks, row)

    def path_tokens(self, row: int) -> tuple[int, ...]:
        """Return the tokens on the path from depth 1 down to ``row``; empty for the root."""
        return self._along(self.tokens, row)

    def _along(self, values: NDArray[np.int64], row: int) -> tuple[int, ...]:
        path: list[int] = []
        while row > 0:  # row 0 is the root
            path.append(int(values[row]))
            row = int(self.parents[row])
        return tuple(reversed(path))


@dataclass(frozen=True, slots=True)
class Candidates:
    """A drafter's answer to a :class:`Request`."""

    # [f, k] token ids, best first or in the order drawn, padded with NO_CANDIDATE; fewer columns if Request.enough
    # allows it. Ids in a row are distinct, unless drawn with replacement or written by TokenRecycling's update "race".
    # For phrases, the shape is [f, k, length], with the same padding.
    tokens: NDArray[np.int64]
    # [f, k] draft log-probabilities given the frontier row; for draws, under the full distribution q
    log_probs: NDArray[np.float32] | None = None
    # [f, V] draft distribution of each frontier row, if tokens were drawn
    q: NDArray[np.float32] | None = None
    pass_tokens: tuple[int, ...] = ()  # tokens fed in each forward pass of a draft model for this answer


@dataclass(frozen=True, slots=True)
class Plan:
    """Limits for one step. None leaves a limit to the builder."""

    max_nodes: int | None = None
    max_depth: int | None = None  # 0 switches speculation off for the step
    threshold: float | None = None  # minimum estimated value of a node, for builders that take a threshold
    choice: int | None = None  # index of the builder to use in a specexp.builders.choice.Choice

    def within(self, max_nodes: int, max_depth: int | None) -> tuple[int, int]:
        """Return the step's maximum number of nodes and maximum depth, as limited by this plan and the builder."""
        nodes = max_nodes if self.max_nodes is None else min(max_nodes, self.max_nodes)
        depths = [depth for depth in (max_depth, self.max_depth) if depth is not None]
        return nodes, min(depths, default=max_nodes)  # a tree of n nodes is at most n deep


@dataclass(frozen=True, slots=True)
class DraftState:
    """The state of a tree just before a request that costs a draft pass."""

    nodes: int  # drafted so far
    depth: int  # maximum depth of a node
    pass_tokens: tuple[int, ...] = ()  # tokens fed in each draft pass of this step so far
    # draft log-probability of the most probable path to a frontier node (the log of the product of the confidences),
    # and of that path's last token; both are 0 if nothing is drafted yet or there are no probabilities
    log_prob: float = 0.0
    last_log_prob: float = 0.0
    # [m, d] Drafter.path_states of that path, if the controller reads them
    states: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's decision. The bonus is the target's token after the last accepted node, or after the root if no
    node is accepted.
    """

    accepted: tuple[int, ...]  # rows from depth 1 down, each the parent of the next
    bonus: int


PLAIN = "plain"
"""The label of plain decoding, used in place of a label that names a composition's parts."""

Selection = Literal["top-k", "drawn"]
"""The candidates that become nodes: the drafter's best, or draws from its distribution without replacement."""


@dataclass(frozen=True, slots=True)
class Filled:
    """All tokens of a tree with a known shape, from a drafter that needs no requests."""

    tokens: NDArray[np.int64]  # [n + 1], starting with the root's token; -1 for a node without a candidate
    pass_tokens: tuple[int, ...] = ()  # tokens fed in each forward pass of a draft model


Build = Generator[Request, Candidates | None, TokenTree]
"""Yields requests, receives their candidates (None: stop drafting here), and returns the tree."""


def kind_of(candidates: Selection) -> NodeKind:
    """Return the kind of node that this selection of candidates produces."""
    return NodeKind.DRAWN if candidates == "drawn" else NodeKind.POINT_MASS
