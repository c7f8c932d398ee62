"""A builder that contains several builders and uses one of them in each step."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from specexp.core.contracts import TreeBuilder
from specexp.core.dialogue import Build, Plan
from specexp.core.wrappers import BuilderWrapper, folded


class Choice(BuilderWrapper):
    """Builds a step's tree with the builder that the controller's plan selects by index, or with the first by default.

    Example:
        >>> Choice([Chain(4), KConfig([4, 2, 1])]).num_choices  # doctest: +SKIP
        2
    """

    max_leaves = folded(max)

    def __init__(self, builders: list[TreeBuilder]) -> None:
        if not builders:
            raise ValueError("Choice was given no builder; at least one is needed")
        self.inner = tuple(builders)
        self.num_choices = len(builders)

    @override
    def build(self, root: int, plan: Plan) -> Build:
        chosen = self.inner[plan.choice or 0]
        return chosen.build(root, replace(plan, choice=None))  # the index does not apply to an inner Choice
