"""What an analysis is: it watches every step of a run, and says afterwards what it saw."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Table
    from specexp.core.outcome import Outcome
    from specexp.core.sequence import Strategy
    from specexp.scheduling.timeline import TimeLine


@dataclass(frozen=True)
class Report:
    """What an analysis has to say.

    Attributes:
        tables: by file name without its end: ``NAME.md`` and ``NAME.csv`` are written.
        figures: by file name without its end: ``NAME.png`` is written.
        files: content by whole file name, e.g. ``acceptance.json``.
    """

    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


class Analysis(ABC):
    """Watches the arms of our engine during ``python -m specexp.run``, outside the clock.

    It looks and changes nothing. Hugging Face's own loops have no steps to watch.

    Attributes:
        name: what all of its files begin with, e.g. ``tree_sizes``.
        watches_steps: whether it looks at single steps, which arms of one sequence at a time show; others look at time
            lines and records of groups.
        needs_models: whether it reads logits, or seconds of its own, which no recording holds.
    """

    name: ClassVar[str]
    watches_steps: ClassVar[bool] = True
    needs_models: ClassVar[bool] = False

    @abstractmethod
    def begin(self, arms: Mapping[str, Strategy]) -> None:
        """A run starts, everything is warm: forget what was seen before.

        Args:
            arms: the parts of every arm that will be watched, plain decoding among them, in the run's order.
        """

    @abstractmethod
    def observe(self, arm: str, outcome: Outcome) -> None:
        """Look at one step.

        Args:
            arm: whose it is.
            outcome: of the step; its arrays may be kept only as copies.
        """

    def observe_run(self, arm: str, prompt_id: str, timeline: TimeLine) -> None:
        """Look at what an arm's execution strategy did for one prompt; most analyses see nothing there.

        Args:
            arm: whose it is.
            prompt_id: of the prompt.
            timeline: of all of its runs for the prompt, one behind the other; it may be kept.
        """
        return None

    @abstractmethod
    def report(self, records: Sequence[PromptRecord]) -> Report:
        """What was seen.

        Args:
            records: of the whole run, all arms.
        """


class GroupAnalysis(Analysis):
    """Looks at time lines and records of groups of sequences, which show no single steps."""

    watches_steps: ClassVar[bool] = False

    def observe(self, arm: str, outcome: Outcome) -> None:
        """Single steps are not looked at."""


def check_baseline(analysis: Analysis, baseline: str, arms: Mapping[str, Strategy]) -> None:
    """Refuse a baseline that is no arm.

    Raises:
        ValueError: with the arms there are.
    """
    if baseline not in arms:
        raise ValueError(
            f"{type(analysis).__name__} was given baseline {baseline!r}, but the arms are {list(arms)}"
        )


def drafting(arms: Mapping[str, Strategy]) -> dict[str, Strategy]:
    """The arms that draft: all but plain decoding."""
    return {name: strategy for name, strategy in arms.items() if strategy.drafter is not None}


def visited(outcome: Outcome) -> tuple[int, ...]:
    """Rows whose children the verifier decided about: the root and the accepted nodes.

    Where the output ended inside the drafted path, nothing is known of what would have followed its last node.
    """
    rows = (0, *outcome.accepted)
    return rows[: len(outcome.new_token_ids)]
