"""Dynamic trees: DySpec's greedy and threshold builders (Xiong et al. 2024, sections 4.2 and 4.4), read correctly."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specexp.builders._base import Build, Selection, TreeBuilder, kind_of
from specexp.builders._samplings import Samplings
from specexp.controllers._base import Plan
from specexp.tree import NodeKind, root_tree

_ASKED_FIRST = 16  # candidates a row is asked for at first; more on demand, which costs no pass


class DySpecGreedy(TreeBuilder):
    """The ``budget`` samplings of the largest value: the tree of DySpec's heap, token for token.

    With drawn candidates the value of a sampling is the probability that it is reached, known before its token is:
    the sum over the tree is the largest any closed set of so many samplings of these draws has (eq. 11). With
    ``top-k`` candidates it is the product of draft probabilities, whose sum is the largest too (appendix D.1).

    The heap of the paper drafts one node a pass. Here the best ``prefetch`` waiting entries are drafted together, next
    siblings included (their tokens are fixed before they are reached): the tree is the same, for noise is keyed by
    place, and takes about depth + 1 passes.

    Args:
        budget: nodes.
        prefetch: nodes drafted in one pass at most; 1 is the paper's order.
        max_depth: deepest node; no limit of its own if None.
        candidates: ``drawn`` without replacement, or the drafter's ``top-k``.
    """

    needs_log_probs = True
    makes_do = True

    def __init__(
        self,
        budget: Annotated[int, Field(ge=1, le=4096)] = 64,
        prefetch: Annotated[int, Field(ge=1, le=4096)] = 32,
        max_depth: Annotated[int, Field(ge=1)] | None = None,
        candidates: Selection = "drawn",
    ) -> None:
        self.budget = budget
        self.prefetch = prefetch
        self.max_depth = max_depth
        self.kind = kind_of(candidates)

    @property
    def max_nodes(self) -> int:
        """The budget."""
        return self.budget

    @property
    def max_candidates(self) -> int:
        """One node may take the whole tree."""
        return self.max_nodes

    def build(self, root: int, plan: Plan) -> Build:
        """Resolve what waits among the best ``budget`` samplings until nothing does."""
        budget, max_depth = _limits(self.budget, self.max_depth, plan)
        if budget == 0 or max_depth == 0:
            return root_tree(root)
        samplings = Samplings(root, self.kind)
        rows, floor = np.zeros(1, dtype=np.int64), 0.25 / budget
        while rows.size:
            k = _candidates_to_ask(samplings, rows, self.max_nodes)
            answer = yield samplings.request(rows, k, floor)
            if answer is None:
                break
            samplings.add(rows, answer, k)
            rows, floor = self._waiting(samplings, budget, max_depth)
        return samplings.tree(root, samplings.best(budget))

    def _waiting(self, samplings: Samplings, budget: int, max_depth: int) -> tuple[NDArray[np.int64], float]:
        """Rows to ask about next, and the key below which nothing can enter the tree."""
        undrafted = np.flatnonzero((samplings.drafted < 0) & (samplings.depth < max_depth))
        first = samplings.weight[undrafted]  # key of the first sampling below each
        following = samplings.open  # key of the next sampling below each drafted row
        keys = np.concatenate((samplings.key, first, following))
        cut = 0.0 if keys.size <= budget else float(np.partition(keys, -budget)[-budget])
        if cut > 0 and np.count_nonzero(samplings.key >= cut) >= budget:
            # the tree is full: what waits at the cut itself enters only before the deepest one there
            deepest = samplings.depth[samplings.key == cut].max(initial=0)
            wanted = (first > cut) | ((first == cut) & (samplings.depth[undrafted] < deepest))
            more = (following > cut) | ((following == cut) & (samplings.open_depths() <= deepest))
        else:
            wanted, more = (first >= cut) & (first > 0), (following >= cut) & (following > 0)
        chosen = undrafted[wanted]
        if chosen.size > self.prefetch:
            order = np.argsort(-samplings.weight[chosen], kind="stable")
            chosen = chosen[order[: self.prefetch]]
        return np.concatenate((np.flatnonzero(more), samplings.draft(chosen))), cut or 0.25 / budget


class DySpecThreshold(TreeBuilder):
    """Every sampling whose value is at least the threshold, layer by layer: one pass a layer (section 4.4).

    Where ``max_nodes`` does not hold a layer, its samplings of the largest value are made and the others are not:
    nothing is dropped after it was drawn.

    Args:
        threshold: lowest value of a sampling, about 1 / nodes; a controller's plan goes first.
        max_nodes: most nodes.
        max_depth: deepest node.
        candidates: ``drawn`` without replacement, or the drafter's ``top-k``.
    """

    needs_log_probs = True
    makes_do = True
    takes_threshold = True

    def __init__(
        self,
        threshold: Annotated[float, Field(gt=0, le=1)] = 1 / 64,
        max_nodes: Annotated[int, Field(ge=1, le=4096)] = 64,
        max_depth: Annotated[int, Field(ge=1)] | None = None,
        candidates: Selection = "drawn",
    ) -> None:
        self.threshold = threshold
        self.max_depth = max_depth
        self.kind = kind_of(candidates)
        self._max_nodes = max_nodes

    @property
    def max_nodes(self) -> int:
        """As configured."""
        return self._max_nodes

    @property
    def max_candidates(self) -> int:
        """One node may take the whole tree."""
        return self.max_nodes

    def build(self, root: int, plan: Plan) -> Build:
        """One request a layer, and more where a row has more candidates above the threshold than were asked for."""
        room, max_depth = _limits(self._max_nodes, self.max_depth, plan)
        threshold = self.threshold if plan.threshold is None else plan.threshold
        if room == 0 or max_depth == 0:
            return root_tree(root)
        samplings = Samplings(root, self.kind)
        chosen = np.empty(0, dtype=np.int64)
        layer = np.zeros(1, dtype=np.int64)
        for depth in range(1, max_depth + 1):
            rows = layer
            known = samplings.key.size
            while rows.size:
                k = _candidates_to_ask(samplings, rows, self.max_nodes)
                answer = yield samplings.request(rows, k, threshold)
                if answer is None:
                    return samplings.tree(root, chosen)
                samplings.add(rows, answer, k)
                rows = rows[samplings.open[rows] >= threshold]
            new = known + np.flatnonzero(samplings.key[known:] >= threshold)
            if new.size > room:
                new = new[np.argsort(-samplings.key[new], kind="stable")[:room]]
            chosen, room = np.concatenate((chosen, new)), room - new.size
            new = new[samplings.weight[new] >= threshold]
            if depth == max_depth or room == 0 or new.size == 0:
                break
            layer = samplings.draft(new)
        return samplings.tree(root, chosen)


class BeamRerank(TreeBuilder):
    """Best candidates by beam, then the best nodes of all (EAGLE-2, Li et al. 2024, sections 4.1 and 4.2).

    At every depth the ``beam`` nodes of the largest product of draft probabilities are expanded with ``beam``
    candidates each; at the end the ``budget`` best of all candidates become the tree. Candidates are never drawn: to
    drop a drawn one for its token would change the distribution.

    Args:
        budget: nodes.
        depth: draft passes, and deepest node.
        beam: nodes expanded at each depth, and candidates of each.
    """

    needs_log_probs = True
    makes_do = True

    def __init__(
        self,
        budget: Annotated[int, Field(ge=1, le=4096)] = 60,
        depth: Annotated[int, Field(ge=1, le=256)] = 6,
        beam: Annotated[int, Field(ge=1, le=256)] = 10,
    ) -> None:
        self.budget = budget
        self.depth = depth
        self.beam = beam

    @property
    def max_nodes(self) -> int:
        """The budget."""
        return self.budget

    @property
    def max_candidates(self) -> int:
        """The beam."""
        return self.beam

    def build(self, root: int, plan: Plan) -> Build:
        """One request a depth."""
        budget, max_depth = _limits(self.budget, self.depth, plan)
        if budget == 0 or max_depth == 0:
            return root_tree(root)
        samplings = Samplings(root, NodeKind.POINT_MASS)
        rows = np.zeros(1, dtype=np.int64)
        for depth in range(1, max_depth + 1):
            known = samplings.key.size
            answer = yield samplings.request(rows, self.beam, 0.0)
            if answer is None:
                break
            samplings.add(rows, answer, self.beam)
            new = np.arange(known, samplings.key.size)
            new = new[np.argsort(-samplings.key[new], kind="stable")[: self.beam]]
            if depth == max_depth or new.size == 0:
                break
            rows = samplings.draft(new)
        return samplings.tree(root, samplings.best(budget))


def _limits(max_nodes: int, max_depth: int | None, plan: Plan) -> tuple[int, int]:
    """Most nodes and deepest node of this step."""
    nodes = max_nodes if plan.max_nodes is None else min(max_nodes, plan.max_nodes)
    depths = [depth for depth in (max_depth, plan.max_depth) if depth is not None]
    return nodes, min(depths, default=max_nodes)


def _candidates_to_ask(samplings: Samplings, rows: NDArray[np.int64], most: int) -> int:
    """More than the rows have; a few for new ones."""
    return min(most, max(_ASKED_FIRST, 2 * int(samplings.row_counts(rows).max(initial=0))))
