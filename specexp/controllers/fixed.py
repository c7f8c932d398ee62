"""Draft lengths without a cost model: fixed, or longer after success and shorter after failure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan
from specexp.core.outcome import Outcome


class Fixed(Controller):
    """Sets the same limits for every step.

    Args:
        max_depth: maximum draft depth; None keeps the builder's limit, 0 is plain decoding.
        max_nodes: maximum number of draft nodes; None keeps the builder's budget.
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


class Heuristic(Controller):
    """Adds 2 to the draft length after a step in which all its tokens were accepted, else subtracts 1, down to 1.

    This is the schedule of Hugging Face's assisted generation (``num_assistant_tokens_schedule``): ``state="carry"``
    matches ``heuristic``, and ``state="cold"`` matches ``heuristic_transient``. Hugging Face sets no maximum length.

    Args:
        initial: initial draft length.
        max_depth: maximum draft length.
        state: ``carry`` keeps the length across prompts, ``cold`` resets it before every prompt.

    Raises:
        ValueError: ``initial`` is above ``max_depth``.
    """

    uses_seconds = False
    reads_answers = False

    def __init__(
        self,
        initial: Annotated[int, Field(ge=1)] = 5,
        max_depth: Annotated[int, Field(ge=1)] = 24,
        state: Literal["carry", "cold"] = "carry",
    ) -> None:
        if initial > max_depth:
            raise ValueError(f"Heuristic: initial must be at most max_depth {max_depth}, got {initial}")
        self.initial = initial
        self.max_depth = max_depth
        self.state = state
        self.length = initial

    @override
    def plan(self, context: Context) -> Plan:
        return Plan(max_depth=self.length)

    @override
    def observe(self, outcome: Outcome) -> None:
        tree, accepted = outcome.tree, outcome.accepted
        drafted, reached = tree.shape.max_depth, len(accepted)  # both without grafted phrases
        if tree.grafted is not None:
            drafted = int(tree.shape.depths[~tree.grafted].max())
            reached -= int(tree.grafted[list(accepted)].sum())
        if drafted == 0:
            return
        # a step cut short by EOS changes nothing
        if reached >= drafted:
            self.length = min(self.length + 2, self.max_depth)
        elif len(outcome.new_token_ids) > len(accepted):
            self.length = max(1, self.length - 1)

    @override
    def reset(self) -> None:
        self.length = self.initial

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"length": self.length}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_entries(state, ("length",))
        self.length = int(state["length"])
