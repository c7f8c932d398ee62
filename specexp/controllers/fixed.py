"""The controller that decides nothing at run time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan


class Fixed(Controller):
    """The same limits at every step.

    Args:
        max_depth: deepest node; None leaves the builder's own depth, 0 is plain decoding.
        max_nodes: most nodes; None leaves the builder's own budget.
    """

    uses_seconds = False
    learns = False
    same_plan = True

    def __init__(
        self,
        max_depth: Annotated[int, Field(ge=0)] | None = None,
        max_nodes: Annotated[int, Field(ge=0)] | None = None,
    ) -> None:
        self._plan = Plan(max_nodes=max_nodes, max_depth=max_depth)
        self.changes_nothing = self._plan == Plan()

    @override
    def plan(self, context: Context) -> Plan:
        return self._plan
