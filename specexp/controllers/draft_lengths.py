"""How much to draft by how many sequences are decoded together, written down once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan


class DraftLengths(Controller):
    """So many nodes from so many lanes on; what :class:`LoadAware` found, or somebody knows.

    Args:
        nodes: most nodes of a draft by the number of lanes from which on that holds, 1 among them; 0 drafts nothing,
            None leaves the builder's own budget.

    Raises:
        ValueError: nothing is said for 1 lane.

    Example:
        >>> controller = DraftLengths({1: None, 4: 3, 8: 0})
    """

    uses_seconds = False
    learns = False
    sees_load = True

    def __init__(self, nodes: dict[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)] | None]) -> None:
        if 1 not in nodes:
            raise ValueError(
                f"DraftLengths was given nodes from {min(nodes, default='no')} lanes on: say how many there are for 1"
            )
        self.nodes = dict(sorted(nodes.items()))

    @override
    def plan(self, context: Context) -> Plan:
        most = next(self.nodes[lanes] for lanes in reversed(self.nodes) if lanes <= context.lanes)
        return Plan(max_nodes=most, max_depth=0 if most == 0 else None)
