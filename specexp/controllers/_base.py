"""What a controller is: it steers the builder, and may learn from outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from specexp.context import Context
from specexp.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Plan:
    """Limits of one step; None leaves the builder's own.

    Attributes:
        max_nodes: most nodes to draft.
        max_depth: deepest node to draft; 0 switches speculation off for the step.
        threshold: lowest value of a sampling, for builders that take one.
    """

    max_nodes: int | None = None
    max_depth: int | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class DraftState:
    """How far a tree has come, before an answer that would cost a draft pass.

    Attributes:
        nodes: nodes drafted so far.
        depth: depth of the deepest.
        draft_passes: passes spent in this step.
    """

    nodes: int
    depth: int
    draft_passes: int


class Controller(ABC):
    """Plans a step, decides between draft passes, and learns when the step is over.

    Attributes:
        plans_threshold: whether its plans hold a threshold; a builder that takes none is then refused.
    """

    plans_threshold: bool = False

    @abstractmethod
    def plan(self, context: Context) -> Plan:
        """Limits of the step about to start."""

    def keep_drafting(self, state: DraftState) -> bool:
        """Whether the next draft pass should be spent."""
        return True

    def begin(self, context: Context, prefill: Outcome | None) -> None:
        """A sequence starts."""
        return None

    def observe(self, outcome: Outcome) -> None:
        """Learn from a step."""
        return None

    def reset(self) -> None:
        """Return to the stated initial state."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What was learned, as tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but {sorted(state)} was given")
