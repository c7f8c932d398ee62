"""Dynamic trees of DySpec (greedy and threshold; Xiong et al. 2024, sections 4.2, 4.4) and EAGLE-2 (beam search)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.builders.samplings import Samplings
from specexp.core.contracts import TreeBuilder
from specexp.core.dialogue import Build, Plan, Selection, kind_of
from specexp.core.tree import NodeKind, root_tree

_FIRST_FLOOR = 0.25  # minimum key in the first requests, as a multiple of 1 / budget


class _Dynamic(TreeBuilder):
    """A builder that compares candidates by their log-probabilities, however many there are."""

    needs_log_probs = True
    accepts_fewer_candidates = True
    max_nodes: int = 1
    max_candidates: int = 1


class DySpecGreedy(_Dynamic):
    """Takes the ``budget`` samplings with the largest values. The tree equals that of DySpec's heap, token for token.

    With drawn candidates, the value of a sampling is the probability that it is reached, which is known before its
    token is drawn. No other closed set of this size has a larger sum of values for the same draws (eq. 11). With
    ``top-k`` candidates, the value is the product of draft probabilities, and the sum is also maximal (appendix D.1).

    The paper's heap drafts one node per pass. Here, one pass drafts the ``prefetch`` best entries of the heap,
    including next siblings, since their tokens are known before they are reached. This takes about depth + 1 passes and
    builds the same tree, because random numbers are keyed by place.

    Args:
        prefetch: maximum number of nodes drafted in one pass; 1 gives the paper's order.
        max_depth: maximum depth; None for no limit.
        candidates: ``drawn`` without replacement, or the drafter's ``top-k``.
        acceptance_power: exponent that maps a drawn candidate's draw probability to its estimated acceptance
            probability; 1 is the paper's hypothesis. If draft and target agree, far more is accepted (everything if p =
            q). About 0.4 then gives deeper trees and more accepted tokens. Not in the paper; see ``AcceptanceHeatMap``.

    Raises:
        ValueError: ``acceptance_power`` is not 1 with ``top-k`` candidates.
    """

    size_arguments = ("budget", "max_depth")

    def __init__(
        self,
        budget: Annotated[int, Field(ge=1, le=4096)] = 64,
        prefetch: Annotated[int, Field(ge=1, le=4096)] = 32,
        max_depth: Annotated[int, Field(ge=1)] | None = None,
        candidates: Selection = "drawn",
        acceptance_power: Annotated[float, Field(gt=0, le=1)] = 1.0,
    ) -> None:
        self.budget = self.max_nodes = self.max_candidates = budget
        self.prefetch = prefetch
        self.max_depth = max_depth
        self.kind = kind_of(candidates)
        self.acceptance_power = _checked_power(type(self).__name__, acceptance_power, self.kind)

    @override
    def build(self, root: int, plan: Plan) -> Build:
        budget, max_depth = plan.within(self.budget, self.max_depth)
        if budget == 0 or max_depth == 0:
            return root_tree(root)
        samplings = Samplings(root, self.kind, budget, self.acceptance_power)
        rows, k, cut = np.zeros(1, dtype=np.int64), budget, 0.0
        while rows.size:
            answer = yield samplings.request(rows, k, cut or _FIRST_FLOOR / budget)
            if answer is None:
                break
            samplings.add(rows, answer, k)
            rows, undrafted, cut = samplings.waiting(max_depth)
            if rows.size == 0:  # draft new nodes only then: more candidates for fed rows cost no pass
                rows = samplings.draft(undrafted[: self.prefetch])
            k = samplings.candidates_to_ask(rows, cut)
        return samplings.tree(samplings.best())


class DySpecThreshold(_Dynamic):
    """Takes all samplings with a value of at least the threshold, level by level, up to ``max_nodes`` (section 4.4).

    Each layer takes one pass. With a low threshold and ``cap="best"``, it builds the same tree as
    :class:`DySpecGreedy` in fewer, larger draft passes.

    Args:
        threshold: minimum value of a sampling, about 1 / nodes; a threshold in the controller's plan takes precedence.
        cap: which samplings to keep if there are more than ``max_nodes``. ``best``, our variant, keeps the best of all
            layers. ``layers``, as published (algorithm 2), keeps whole layers, top down, and the best of the last one.
        max_depth: maximum depth; None for no limit.
        candidates: ``drawn`` without replacement, or the drafter's ``top-k``.
        acceptance_power: as in :class:`DySpecGreedy`.

    Raises:
        ValueError: ``acceptance_power`` is not 1 with ``top-k`` candidates.
    """

    size_arguments = ("max_nodes", "max_depth")
    takes_threshold = True

    def __init__(
        self,
        threshold: Annotated[float, Field(gt=0, le=1)] = 1 / 64,
        max_nodes: Annotated[int, Field(ge=1, le=4096)] = 64,
        max_depth: Annotated[int, Field(ge=1)] | None = None,
        candidates: Selection = "drawn",
        acceptance_power: Annotated[float, Field(gt=0, le=1)] = 1.0,
        cap: Literal["best", "layers"] = "best",
    ) -> None:
        self.threshold = threshold
        self.cap = cap
        self.max_depth = max_depth
        self.kind = kind_of(candidates)
        self.acceptance_power = _checked_power(type(self).__name__, acceptance_power, self.kind)
        self.max_nodes = self.max_candidates = max_nodes

    @override
    def build(self, root: int, plan: Plan) -> Build:
        room, max_depth = plan.within(self.max_nodes, self.max_depth)
        threshold = self.threshold if plan.threshold is None else plan.threshold
        if room == 0 or max_depth == 0:
            return root_tree(root)
        samplings = Samplings(root, self.kind, room, self.acceptance_power)
        layer = np.zeros(1, dtype=np.int64)
        layers = np.empty(0, dtype=np.int64)  # samplings kept by the cap "layers"
        for depth in range(1, max_depth + 1):
            rows, known = layer, samplings.size
            floor = max(threshold, samplings.lowest)
            k = samplings.candidates_to_ask(rows, floor)
            while rows.size:  # until no row may have another sampling for the tree
                answer = yield samplings.request(rows, k, floor)
                if answer is None:
                    max_depth = depth
                    break
                samplings.add(rows, answer, k)
                floor = max(threshold, samplings.lowest)
                rows = np.intersect1d(rows, samplings.open_above(floor))
                k = samplings.candidates_to_ask(rows, floor)
            # the first sampling below a node has the value w(node), and loses a tie with those above it
            new, lowest = samplings.since(known, floor), samplings.lowest
            if self.cap == "layers":
                new = new[: room - layers.size]
                layers = np.concatenate((layers, new))
                if layers.size == room:
                    break
            weights = samplings.weights(new)
            new = new[(weights >= threshold) & (weights > lowest)]
            if depth == max_depth or new.size == 0:
                break
            layer = samplings.draft(new)
        return samplings.tree(layers if self.cap == "layers" else samplings.best(threshold))


class BeamRerank(_Dynamic):
    """Runs a beam search and keeps the best of all its nodes (EAGLE-2, Li et al. 2024, sections 4.1 and 4.2).

    At every depth, the ``beam`` nodes with the largest product of draft probabilities are expanded with ``beam``
    candidates each. At the end, the ``budget`` best of all candidates become the tree. Candidates are never drawn:
    dropping a drawn candidate because of its token would change the distribution.

    Args:
        budget: maximum number of nodes.
        depth: maximum depth, and number of draft passes.
        beam: number of nodes expanded at each depth, and number of candidates for each of them.
    """

    size_arguments = ("budget", "depth")

    def __init__(
        self,
        budget: Annotated[int, Field(ge=1, le=4096)] = 60,
        depth: Annotated[int, Field(ge=1, le=256)] = 6,
        beam: Annotated[int, Field(ge=1, le=256)] = 10,
    ) -> None:
        self.budget = self.max_nodes = budget
        self.depth = depth
        self.beam = self.max_candidates = beam

    @override
    def build(self, root: int, plan: Plan) -> Build:
        budget, max_depth = plan.within(self.budget, self.depth)
        if budget == 0 or max_depth == 0:
            return root_tree(root)
        samplings = Samplings(root, NodeKind.POINT_MASS, budget)
        rows = np.zeros(1, dtype=np.int64)
        for depth in range(1, max_depth + 1):
            known = samplings.size
            answer = yield samplings.request(rows, self.beam, 0.0)
            if answer is None:
                break
            samplings.add(rows, answer, self.beam)
            new = samplings.since(known, 0.0)[: self.beam]  # expansion phase (section 4.1)
            if depth == max_depth or new.size == 0:
                break
            rows = samplings.draft(new)
        return samplings.tree(samplings.best())  # reranking phase (section 4.2)


def _checked_power(name: str, power: float, kind: NodeKind) -> float:
    if power != 1 and kind is NodeKind.POINT_MASS:
        raise ValueError(f"{name}: acceptance_power must be 1 with top-k candidates, got {power}")
    return power
