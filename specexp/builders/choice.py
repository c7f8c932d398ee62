"""Several builders, one of which makes the tree of a step."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from dataclasses import replace

from specexp.core.builder import Build, TreeBuilder
from specexp.core.controller import Plan
from specexp.core.tree import NodeKind


class Choice(TreeBuilder):
    """Builds a step's tree with the builder that the controller's plan names by its number; with the first one if the
    plan names none.

    It needs whatever one of its builders needs; each of them must go together with the drafter.

    Args:
        builders: to choose from.

    Raises:
        ValueError: there is none.

    Example:
        >>> Choice([Chain(4), KConfig([4, 2, 1])]).arms  # doctest: +SKIP
        2
    """

    def __init__(self, builders: list[TreeBuilder]) -> None:
        if not builders:
            raise ValueError("Choice was given no builder; at least one is needed")
        self.builders = builders
        self.arms = len(builders)
        drawing = (builder.kind for builder in builders if builder.kind is not NodeKind.POINT_MASS)
        self.kind = next(drawing, NodeKind.POINT_MASS)
        self.needs_log_probs = any(builder.needs_log_probs for builder in builders)
        self.makes_do = all(builder.makes_do for builder in builders)
        self.takes_threshold = all(builder.takes_threshold for builder in builders)
        self.phrase_length = max(builder.phrase_length for builder in builders)

    @property
    def max_nodes(self) -> int:
        """Of the largest tree."""
        return max(builder.max_nodes for builder in self.builders)

    @property
    def max_candidates(self) -> int:
        """Of the widest tree."""
        return max(builder.max_candidates for builder in self.builders)

    def build(self, root: int, plan: Plan) -> Build:
        """As the chosen builder does, under the same limits."""
        chosen = self.builders[plan.arm or 0]
        return chosen.build(root, plan if plan.arm is None else replace(plan, arm=None))
