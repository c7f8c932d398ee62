"""The contract of controllers: they decide how much to draft."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.core.checked import Checked
from specexp.core.context import Context
from specexp.core.dialogue import DraftState, Plan
from specexp.core.latency import LatencyProfile
from specexp.core.part import Part

if TYPE_CHECKING:
    from specexp.core.drafter import Drafter
    from specexp.core.tree_builder import TreeBuilder
    from specexp.core.verifier import Verifier


class Controller(Part, metaclass=Checked):
    """Plans a step, decides between draft passes, and learns when the step is over.

    Attributes:
        plans_threshold: whether its plans hold a threshold; a builder that takes none is then refused.
        needs_log_probs: whether it decides by draft probabilities; a drafter without is refused.
        num_choices: how many builders its plans choose from; a builder with fewer is refused. 1 where it chooses none.
        uses_seconds: whether the seconds of steps decide what it does, so that it does otherwise on another device.
        learns: whether it does otherwise after what it observed.
        reads_answers: whether it learns from the target's answers themselves, beside what was accepted and committed;
            where nobody reads them they are not copied to who drafts elsewhere.
        same_plan: whether every step has the same plan, and no draft is ended before.
        changes_nothing: whether that plan is the builder's own limits.
        needs_foresight: whether it must know a prompt's output beforehand, as only an evaluation can.
        mean_nodes: nodes that it keeps the mean of its trees at; None where it aims at none.
        sees_load: whether it plans by how many sequences are decoded together.
    """

    plans_threshold: bool = False
    needs_log_probs: bool = False
    num_choices: int = 1
    uses_seconds: bool = True
    learns: bool = True
    reads_answers: bool = True
    same_plan: bool = False
    changes_nothing: bool = False
    needs_foresight: bool = False
    mean_nodes: int | None = None
    sees_load: bool = False

    @property
    def inner(self) -> tuple[Controller, ...]:
        """The controllers it asks; none unless it wraps some."""
        return ()

    def check_parts(
        self, drafter: Drafter | None, builder: TreeBuilder | None, verifier: Verifier | None
    ) -> None:
        """Refuse parts it cannot steer, when composed; None stands for plain decoding, or greedy verification.

        Raises:
            ValueError: one sentence that says what to change.
        """
        return None

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

    def watched(self) -> dict[str, float]:
        """Figures to watch while it learns, by name."""
        return {}

    def learned(self) -> str:
        """What it knows, in a clause; empty where there is nothing to tell."""
        return ""

    def use_latency(self, profile: LatencyProfile | None) -> None:
        """Take the latencies a run is modelled with, if the controller weighs costs and was given none of its own.

        Args:
            profile: what steps cost on the device; None where seconds are measured.

        Raises:
            ValueError: it needs latencies, has none of its own, and the profile does not hold them.
        """
        return None


class BuilderLimits(Controller):
    """Leaves every step to the builder's own limits: who controls where nobody is named."""

    uses_seconds = False
    learns = False
    same_plan = True
    changes_nothing = True

    @override
    def plan(self, context: Context) -> Plan:
        return Plan()
