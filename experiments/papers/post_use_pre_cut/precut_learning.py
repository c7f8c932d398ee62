"""Utilisation over the questions while a controller learns (Post-use & Pre-cut, figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from typing_extensions import override

from specexp.bench.analysis import Analysis, drafting, grafted_rows, over
from specexp.bench.pictures import new_figure
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Table, columns
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts


class PrecutLearning(Analysis):
    """Running utilisation (accepted / drafted, its table 4) of every arm by question, in the order decoded.

    Nodes of grafted phrases cost no draft pass and are left out of both counts, so that arms with and without reuse are
    compared in what the controller decides about.
    """

    name: ClassVar[str] = "precut_learning"

    def __init__(self) -> None:
        self._questions: dict[str, dict[int | str, NDArray[np.int64]]] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._questions = {arm: {} for arm in drafting(arms)}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        if arm not in self._questions:
            return
        own = ~grafted_rows(outcome.tree)
        counts = np.array([own[1:].sum(), own[list(outcome.accepted)].sum()])  # drafted, accepted
        questions, question = self._questions[arm], outcome.context.sequence
        questions[question] = questions.get(question, np.zeros(2, dtype=np.int64)) + counts

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = Table(
            "Accepted of drafted tokens, by question",
            columns("arm | questions:.0 | first half:.1% | second half:.1% | all:.1%"),
            notes=["Tokens of the drafter alone: grafted phrases cost no draft pass and are not counted."],
        )
        for arm, questions in self._questions.items():
            found = list(questions.values())
            middle = (len(found) + 1) // 2
            parts = (found[:middle], found[middle:], found)
            table.rows.append([arm, len(found), *map(_utilisation, parts)])
        return Report({self.name: table}, {self.name: self._draw()})

    def running(self, arm: str) -> list[float]:
        """Accepted over drafted nodes of all questions up to each; 0 until something is drafted."""
        drafted, accepted = np.cumsum([[0, 0], *self._questions[arm].values()], axis=0)[1:].T
        shares: list[float] = (accepted / np.maximum(drafted, 1)).tolist()
        return shares

    def _draw(self) -> Figure:
        figure, [[axes]] = new_figure(7, 4)
        for arm in self._questions:
            shares = self.running(arm)
            axes.plot(range(1, len(shares) + 1), [100 * share for share in shares], label=arm)
        axes.set_xlabel("questions decoded")
        axes.set_ylabel("accepted / drafted so far (%)")
        axes.set_ylim(bottom=0)
        if self._questions:
            axes.legend()
        return figure


def _utilisation(questions: Sequence[NDArray[np.int64]]) -> float | None:
    drafted, accepted = (sum(int(counts[place]) for counts in questions) for place in range(2))
    return over(accepted, drafted)
