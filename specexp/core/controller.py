"""What a controller is: it steers the builder, and may learn from outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from specexp.core.context import Context
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome

if TYPE_CHECKING:
    from specexp.builders import TreeBuilder
    from specexp.drafters import Drafter
    from specexp.verifiers import Verifier


@dataclass(frozen=True, slots=True)
class Plan:
    """Limits of one step; None leaves the builder's own.

    Attributes:
        max_nodes: most nodes to draft.
        max_depth: deepest node to draft; 0 switches speculation off for the step.
        threshold: lowest value of a sampling, for builders that take one.
        arm: which of the builders of a :class:`~specexp.builders.Choice` builds the tree.
    """

    max_nodes: int | None = None
    max_depth: int | None = None
    threshold: float | None = None
    arm: int | None = None


@dataclass(frozen=True, slots=True)
class DraftState:
    """How far a tree has come, before an answer that would cost a draft pass.

    Attributes:
        nodes: nodes drafted so far.
        depth: depth of the deepest.
        pass_tokens: tokens fed in each draft pass of this step so far.
        log_prob: draft log-probability of the most probable path to a node that the pass would draft from (the
            product of the confidences); 0 while nothing is drafted, or where the drafter gives no probabilities.
        last_log_prob: of that path's last token alone.
    """

    nodes: int
    depth: int
    pass_tokens: tuple[int, ...] = ()
    log_prob: float = 0.0
    last_log_prob: float = 0.0

    @property
    def draft_passes(self) -> int:
        """Passes spent in this step."""
        return len(self.pass_tokens)


class Controller(ABC):
    """Plans a step, decides between draft passes, and learns when the step is over.

    Attributes:
        plans_threshold: whether its plans hold a threshold; a builder that takes none is then refused.
        needs_log_probs: whether it decides by draft probabilities; a drafter without is refused.
        arms: how many arms its plans choose from; a builder with fewer is refused. 1 where it chooses none.
    """

    plans_threshold: bool = False
    needs_log_probs: bool = False
    arms: int = 1

    def check_parts(
        self, drafter: Drafter | None, builder: TreeBuilder | None, verifier: Verifier | None
    ) -> None:
        """Refuse parts it cannot steer, when composed; None stands for plain decoding, or greedy verification.

        Raises:
            ValueError: one sentence that says what to change.
        """
        return None

    @property
    def carries(self) -> bool:
        """Whether what it learns from one sequence serves the next ones: its ``state`` is ``carry``."""
        return getattr(self, "state", None) == "carry"

    def twin(self) -> Self:
        """Another one for a sequence decoded at the same time, in one thread.

        It shares what is carried from sequence to sequence, and has its own of what belongs to one.

        One that carries must keep what belongs to a sequence apart by itself, so it may be its own twin.
        """
        return self if self.carries else deepcopy(self)

    @abstractmethod
    def plan(self, context: Context) -> Plan:
        """Limits of the step about to start."""

    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        """Whether the next draft pass should be spent.

        Args:
            context: the sequence; random choices are keyed by its place.
            state: the tree so far.
        """
        return True

    def use_latency(self, profile: LatencyProfile | None) -> None:
        """Take the latencies a run is modelled with, if the controller weighs costs and was given none of its own.

        Args:
            profile: of the device; None where seconds are measured.

        Raises:
            ValueError: it needs latencies, has none of its own, and the profile does not hold them.
        """
        return None

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
