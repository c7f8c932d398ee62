"""What an analysis is: it watches every step of a run, and says afterwards what it saw."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

if TYPE_CHECKING:
    from specexp.bench.publish import Report
    from specexp.bench.record import PromptRecord
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts
    from specexp.scheduling.timeline import TimeLine


class Analysis(ABC):
    """Watches the arms of our engine during ``python -m specexp.run``, outside the clock.

    It looks and changes nothing. Hugging Face's own loops have no steps to watch.

    Attributes:
        name: What all of its files begin with, e.g. ``tree_sizes``.
        watches_steps: Whether it looks at single steps, which arms of one sequence at a time show; others look at time
            lines and records of several sequences.
        needs_models: Whether it reads logits, or seconds of its own, which no recording holds.
    """

    name: ClassVar[str]
    watches_steps: ClassVar[bool] = True
    needs_models: ClassVar[bool] = False

    @abstractmethod
    def begin(self, arms: Mapping[str, Parts]) -> None:
        """A run starts, everything is warm: forget what was seen before.

        Args:
            arms: Parts of every arm that will be watched, plain decoding among them, in the run's order.
        """

    @abstractmethod
    def observe(self, arm: str, outcome: Outcome) -> None:
        """Look at one step.

        Args:
            arm: Name of the arm.
            outcome: Outcome of the step; its arrays may be kept only as copies.
        """

    def observe_run(self, arm: str, prompt_id: str, timeline: TimeLine) -> None:
        """Look at what an arm's execution strategy did for one prompt; most analyses see nothing there.

        Args:
            arm: Name of the arm.
            prompt_id: Prompt that was decoded.
            timeline: All of the arm's runs for the prompt, one behind the other; it may be kept.
        """
        return None

    @abstractmethod
    def report(self, records: Sequence[PromptRecord]) -> Report:
        """What was seen.

        Args:
            records: Records of the whole run, all arms.
        """


class MultiSequenceAnalysis(Analysis):
    """Looks at time lines and records of several sequences decoded for a prompt, which show no single steps."""

    watches_steps: ClassVar[bool] = False

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        return None


def check_baseline(analysis: Analysis, baseline: str, arms: Mapping[str, Parts]) -> None:
    """Refuse a baseline that is no arm.

    Raises:
        ValueError: with the arms there are.
    """
    if baseline not in arms:
        raise ValueError(
            f"{type(analysis).__name__} was given baseline {baseline!r}, but the arms are {list(arms)}"
        )


def drafting(arms: Mapping[str, Parts]) -> dict[str, Parts]:
    """The arms that draft: all but plain decoding."""
    return {name: strategy for name, strategy in arms.items() if strategy.drafter is not None}


def visited(outcome: Outcome) -> tuple[int, ...]:
    """Rows whose children the verifier decided about: the root and the accepted nodes.

    Where the output ended inside the drafted path, nothing is known of what would have followed its last node.
    """
    rows = (0, *outcome.accepted)
    return rows[: len(outcome.new_token_ids)]
