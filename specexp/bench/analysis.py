"""What an analysis is: it watches every step of a run, and says afterwards what it saw."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.checked import Checked

if TYPE_CHECKING:
    from specexp.bench.publish import Report
    from specexp.bench.record import PromptRecord
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts
    from specexp.core.tree import TokenTree
    from specexp.scheduling.timeline import TimeLine


class Analysis(metaclass=Checked):
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

        Raises:
            ValueError: An arm that the analysis was told of is not among them.
        """

    def observe(self, arm: str, outcome: Outcome) -> None:
        """Look at one step; an analysis of records alone sees nothing there.

        Args:
            arm: Name of the arm.
            outcome: Outcome of the step; its arrays may be kept only as copies.
        """
        return None

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
    """Looks at time lines and records of several sequences decoded for a prompt, which show no single steps.

    Args:
        baseline: Arm that speedups are over.
    """

    watches_steps: ClassVar[bool] = False

    def __init__(self, baseline: str = "engine") -> None:
        self.baseline = baseline

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        check_arms(self, "baseline", [self.baseline], arms)


def check_arms(analysis: Analysis, argument: str, given: Iterable[str], arms: Iterable[str]) -> None:
    """Refuse names of arms that there are not.

    Args:
        analysis: The analysis that was given them.
        argument: By which argument.
        given: Names.
        arms: Names there are.

    Raises:
        ValueError: with the arms there are.
    """
    known = list(arms)
    for name in given:
        if name not in known:
            raise ValueError(
                f"{type(analysis).__name__} was given {argument} {name!r}, but the arms are {known}"
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


def grafted_rows(tree: TokenTree) -> NDArray[np.bool_]:
    """``[n + 1]`` which rows are of phrases that were hung onto the drafted tree."""
    return np.zeros(tree.tokens.size, dtype=np.bool_) if tree.grafted is None else tree.grafted


def ended_inside(outcome: Outcome) -> bool:
    """Whether the output ended inside the draft, without a bonus token."""
    return len(outcome.new_token_ids) == len(outcome.accepted)


def over(part: float, whole: float) -> float | None:
    """A ratio; None over nothing."""
    return part / whole if whole else None
