"""Several builders, one of which makes the tree of a step."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from specexp.core.dialogue import Build, Plan
from specexp.core.tree import NodeKind
from specexp.core.tree_builder import TreeBuilder


class Choice(TreeBuilder):
    """Builds a step's tree with the builder that the controller's plan names by its number; with the first one if the
    plan names none.

    It needs whatever one of its builders needs; each of them must go together with the drafter.

    Args:
        builders: builders to choose from.

    Raises:
        ValueError: there is none.

    Example:
        >>> Choice([Chain(4), KConfig([4, 2, 1])]).num_choices  # doctest: +SKIP
        2
    """

    def __init__(self, builders: list[TreeBuilder]) -> None:
        if not builders:
            raise ValueError("Choice was given no builder; at least one is needed")
        self.builders = builders
        self.num_choices = len(builders)
        drawing = (builder.kind for builder in builders if builder.kind is not NodeKind.POINT_MASS)
        self.kind = next(drawing, NodeKind.POINT_MASS)
        self.needs_log_probs = any(builder.needs_log_probs for builder in builders)
        self.accepts_fewer_candidates = all(builder.accepts_fewer_candidates for builder in builders)
        self.takes_threshold = all(builder.takes_threshold for builder in builders)
        self.phrase_length = max(builder.phrase_length for builder in builders)

    @property
    @override
    def inner(self) -> tuple[TreeBuilder, ...]:
        return tuple(self.builders)

    @property
    @override
    def max_nodes(self) -> int:
        return max(builder.max_nodes for builder in self.builders)

    @property
    @override
    def max_candidates(self) -> int:
        return max(builder.max_candidates for builder in self.builders)

    @override
    def build(self, root: int, plan: Plan) -> Build:
        chosen = self.builders[plan.choice or 0]
        return chosen.build(root, plan if plan.choice is None else replace(plan, choice=None))
