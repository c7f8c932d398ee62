"""Utilisation over the questions while a controller learns (Post-use & Pre-cut, figure 4)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.publish import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Table
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts


@dataclass
class _Question:
    """Of one prompt: nodes of the drafter's that were fed to the target, and those accepted; grafts not counted."""

    drafted: int = 0
    accepted: int = 0


class PrecutLearning(Analysis):
    """Running utilisation (accepted / drafted, its table 4) of every arm by question, in the order decoded.

    Nodes of grafted phrases cost no draft pass and are left out of both counts, so that arms with and without reuse are
    compared in what the controller decides about.
    """

    name: ClassVar[str] = "precut_learning"

    def __init__(self) -> None:
        self._questions: dict[str, dict[int | str, _Question]] = {}

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Count from zero."""
        self._questions = {arm: {} for arm in drafting(arms)}

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Count what was drafted and accepted."""
        if arm not in self._questions:
            return
        question = self._questions[arm].setdefault(outcome.context.sequence, _Question())
        grafted = outcome.tree.grafted
        question.drafted += outcome.tree.num_nodes - (0 if grafted is None else int(grafted.sum()))
        question.accepted += sum(grafted is None or not grafted[row] for row in outcome.accepted)

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """The first and the second half of the questions in a table, and a picture of all."""
        return Report({self.name: self._table()}, {self.name: self._draw()})

    def running(self, arm: str) -> list[float]:
        """Accepted over drafted nodes of all questions up to each; 0 until something is drafted."""
        shares, drafted, accepted = [], 0, 0
        for question in self._questions[arm].values():
            drafted, accepted = drafted + question.drafted, accepted + question.accepted
            shares.append(accepted / drafted if drafted else 0.0)
        return shares

    def _table(self) -> "Table":
        from specexp.bench.table import Column, Table

        columns = [
            Column("arm"),
            Column("questions", 0),
            *(Column(part, 1, "%") for part in ("first half", "second half", "all")),
        ]
        table = Table(
            "Accepted of drafted tokens, by question",
            columns,
            notes=["Tokens of the drafter alone: grafted phrases cost no draft pass and are not counted."],
        )
        for arm, questions in self._questions.items():
            found = list(questions.values())
            middle = (len(found) + 1) // 2
            parts = (found[:middle], found[middle:], found)
            table.rows.append([arm, len(found), *map(_utilisation, parts)])
        return table

    def _draw(self) -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for arm in self._questions:
            shares = self.running(arm)
            axes.plot(range(1, len(shares) + 1), [100 * share for share in shares], label=arm)
        axes.set_xlabel("questions decoded")
        axes.set_ylabel("accepted / drafted so far (%)")
        axes.set_ylim(bottom=0)
        if self._questions:
            axes.legend()
        return figure


def _utilisation(questions: Sequence[_Question]) -> float | None:
    drafted = sum(question.drafted for question in questions)
    return sum(question.accepted for question in questions) / drafted if drafted else None
