"""Analyses, which turn the steps of a run into tables and pictures like those in a paper."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from specexp.bench.observers import Observer
from specexp.bench.record import PromptRecord
from specexp.core.parts import Parts
from specexp.report.publish import Report


class Analysis(Observer):
    """An observer that produces its own report on a run."""

    name: ClassVar[str]  # prefix of all its files, e.g. ``tree_sizes``

    @abstractmethod
    def report(self, records: Sequence[PromptRecord]) -> Report:
        """Return the report, given the records of all arms."""


def drafting(arms: Mapping[str, Parts]) -> dict[str, Parts]:
    """Return the arms that draft, which is all except plain decoding."""
    return {name: strategy for name, strategy in arms.items() if strategy.drafter is not None}


def over(part: float, whole: float) -> float | None:
    """Return ``part / whole``, or None if ``whole`` is 0."""
    return part / whole if whole else None
