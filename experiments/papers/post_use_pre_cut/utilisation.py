"""How much of what is drafted becomes output (Post-use & Pre-cut, table 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from typing_extensions import override

from experiments.papers.published import NOT_RUN, Row, add_rows, check_rows, figure_of, label_of
from specexp.bench.analysis import Analysis, drafting, grafted_rows, over
from specexp.bench.pictures import BLUE, GREY, INK, ORANGE, legend_below, name_rows, new_figure
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Cell, Table, columns
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts

PUBLISHED = {"accepted": "accepted/step", "with_bonus": "with bonus", "utilisation": "accepted / drafted"}
_PALE = "#ecd3bd"


@dataclass
class _Counts:
    """Sums over the steps of an arm.

    Attributes:
        steps: Target passes.
        tokens: Tokens of the output.
        drafted: Nodes the drafter gave.
        accepted: Those of them that were accepted.
        grafted: Nodes of phrases hung onto drafted trees.
        grafted_accepted: Those of them that were accepted.
        passes: Passes of a draft model.
        saved: Layers of the drafted trees beyond the passes they took.
    """

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    grafted: int = 0
    grafted_accepted: int = 0
    passes: int = 0
    saved: int = 0

    @property
    def utilisation(self) -> float | None:
        """Share of all nodes that was accepted."""
        return over(self.accepted + self.grafted_accepted, self.drafted + self.grafted)

    def cells(self) -> list[Cell]:
        """The row of the table."""
        accepted, nodes = self.accepted + self.grafted_accepted, self.drafted + self.grafted
        return [
            over(accepted, self.steps),
            over(self.tokens, self.steps),
            over(nodes, self.steps),
            self.utilisation,
            over(self.accepted, self.drafted),
            over(self.grafted_accepted, self.grafted),
            over(self.passes, self.steps),
            over(self.tokens, self.passes),
            over(self.saved, self.steps) if self.passes else None,
        ]


class Utilisation(Analysis):
    """Accepted drafts a step, and utilisation in both of the paper's senses, named apart: accepted over drafted nodes
    (its table 4), and output tokens over draft passes (its section 3.1.1).

    Nodes of phrases grafted onto a tree cost no draft pass, so the first is also told of each kind of node alone. What
    phrases that ride in a draft pass saved are the layers of a drafted tree beyond the passes it took.

    Args:
        published: Rows of a paper's table to show beside it: ``method``, and any of ``accepted`` (drafts a step,
            without the bonus token) and ``utilisation`` (accepted over drafted, a share).
    """

    name: ClassVar[str] = "utilisation"

    def __init__(self, published: list[Row] | None = None) -> None:
        self.published = check_rows(published, ["accepted"], shares=["utilisation"])
        self._counts: dict[str, _Counts] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._counts = {arm: _Counts() for arm in drafting(arms)}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        if arm not in self._counts:
            return
        counts, grafted, accepted = self._counts[arm], grafted_rows(outcome.tree), len(outcome.accepted)
        grafts, grafts_accepted = int(grafted.sum()), int(grafted[list(outcome.accepted)].sum())
        counts.steps += 1
        counts.tokens += len(outcome.new_token_ids)
        counts.drafted += outcome.tree.num_nodes - grafts
        counts.accepted += accepted - grafts_accepted
        counts.grafted += grafts
        counts.grafted_accepted += grafts_accepted
        counts.passes += outcome.draft_passes
        if outcome.draft_passes:
            layers = int(outcome.tree.shape.depths[~grafted].max())
            counts.saved += max(0, layers - outcome.draft_passes)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = Table(
            "What becomes of drafted tokens",
            columns(
                "arm | accepted/step | with bonus | nodes/step:.1 | accepted / drafted:.1% | of the drafter's:.1%"
                " | of grafted phrases':.1% | draft passes/step:.1 | tokens / draft pass | passes saved/step"
            ),
            [[arm, *counts.cells()] for arm, counts in self._counts.items()],
            [
                "Accepted / drafted is the utilisation of the paper's table 4: of all nodes fed to the target, of "
                "those the drafter gave, of those of grafted phrases; tokens / draft pass is that of section 3.1.1.",
                "Passes saved: layers of the drafted tree beyond the draft passes it took; phrases rode in a pass.",
            ],
        )
        theirs: list[Row] = [
            {**row, "with_bonus": figure_of(row, "accepted") + 1} if "accepted" in row else row
            for row in self.published
        ]
        add_rows(table, theirs, PUBLISHED)
        if self.published:
            table.notes.append(NOT_RUN)
            table.notes.append(
                "The paper's accepted length leaves the bonus token out; with it, it is ours to add."
            )
        shown = {arm: counts for arm, counts in self._counts.items() if counts.drafted + counts.grafted}
        return Report({self.name: table}, {self.name: self._draw(shown)} if shown else {})

    def _draw(self, shown: Mapping[str, _Counts]) -> Figure:
        published = [row for row in self.published if {"accepted", "utilisation"} <= row.keys()]
        labels = [*shown, *map(label_of, published)]
        title = "What becomes of the tokens drafted in a step"
        figure, [[axes]] = new_figure(8.5, 1.7 + 0.42 * len(labels), title)
        stacks = {
            ("drafted, accepted", BLUE): [one.accepted / one.steps for one in shown.values()],
            ("phrases, accepted", ORANGE): [one.grafted_accepted / one.steps for one in shown.values()],
            ("drafted, rejected", GREY): [(one.drafted - one.accepted) / one.steps for one in shown.values()],
            ("phrases, rejected", _PALE): [
                (one.grafted - one.grafted_accepted) / one.steps for one in shown.values()
            ],
        }
        ends, shares = np.zeros(len(labels)), [one.utilisation or 0.0 for one in shown.values()]
        for (label, colour), widths in stacks.items():
            if any(widths):
                axes.barh(range(len(shown)), widths, 0.66, ends[: len(shown)], color=colour, label=label)
                ends[: len(shown)] += widths
        for place, row in enumerate(published, start=len(shown)):
            accepted, share = figure_of(row, "accepted"), figure_of(row, "utilisation")
            drafted = accepted / share
            hollow: dict[str, Any] = {"fill": False, "ls": "--"}
            axes.barh(place, accepted, 0.66, edgecolor=BLUE, **hollow)
            axes.barh(place, drafted - accepted, 0.66, accepted, edgecolor=GREY, **hollow)
            ends[place] = drafted
            shares.append(share)
        for place, (end, share) in enumerate(zip(ends, shares, strict=True)):
            axes.text(end, place, f"  {100 * share:.0f} % accepted", va="center", fontsize=8, color=INK)
        name_rows(axes, labels)
        axes.margins(x=0.18)
        axes.set_xlabel("tokens drafted in a step", fontsize=9)
        legend_below(figure, 4)
        return figure
