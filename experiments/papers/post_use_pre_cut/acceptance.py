"""Acceptance of drafted tokens: utilisation, its growth while a controller learns, and acceptance by confidence
(Post-use & Pre-cut, table 4, figures 4 and 2c).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import binomtest, spearmanr
from typing_extensions import override

from experiments.papers.shared import (
    DraftingAnalysis,
    Row,
    add_rows,
    check_rows,
    correlation_interval,
    grafted_rows,
    label,
    label_of,
    report_of,
    table_of,
)
from specexp.bench.observers import ended_inside
from specexp.bench.record import PromptRecord
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.report.analysis import over
from specexp.report.pictures import BLUE, GRAY, ORANGE, legend_below, name_rows, new_figure
from specexp.report.publish import Report
from specexp.report.table import Cell, Table

PUBLISHED = {"accepted": "accepted/step", "with_bonus": "with bonus", "utilisation": "accepted / drafted"}
KINDS = {
    "drafted, accepted": BLUE,
    "phrases, accepted": ORANGE,
    "drafted, rejected": GRAY,
    "phrases, rejected": "#ecd3bd",
}
LOWEST = 1e-4  # smaller products share one bin


@dataclass
class Counts:
    """Sums over an arm's steps; ``nodes`` and ``accepted`` are ``[2]``: the drafter's, those of grafted phrases."""

    steps: int = 0
    tokens: int = 0
    passes: int = 0
    nodes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, dtype=np.int64))
    accepted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, dtype=np.int64))

    @property
    def utilisation(self) -> float | None:
        """Accepted nodes over all nodes."""
        return over(int(self.accepted.sum()), int(self.nodes.sum()))

    def cells(self) -> list[Cell]:
        """Return the cells of the table's row, without the arm."""
        accepted, nodes = int(self.accepted.sum()), int(self.nodes.sum())
        a_step = [over(count, self.steps) for count in (accepted, self.tokens, nodes)]
        each = [over(*pair) for pair in zip(self.accepted.tolist(), self.nodes.tolist(), strict=True)]
        passes = [over(self.passes, self.steps), over(self.tokens, self.passes)]
        return [*a_step, self.utilisation, *each, *passes]


class Utilisation(DraftingAnalysis[Counts]):
    """Accepted drafts per step, accepted over drafted nodes by kind (table 4), and tokens per draft pass (3.1.1).

    Args:
        published: Rows of a paper's table: ``method``, and any of ``accepted`` (drafts a step, without the bonus token)
            and ``utilisation`` (accepted over drafted, a share).
    """

    name: ClassVar[str] = "utilisation"

    def __init__(self, published: list[Row] | None = None) -> None:
        super().__init__()
        self.published = check_rows(published, ["accepted", "utilisation"])

    @override
    def new_state(self, parts: Parts) -> Counts:
        return Counts()

    @override
    def watch(self, arm: str, state: Counts, outcome: Outcome) -> None:
        grafted = grafted_rows(outcome.tree)
        state.steps += 1
        state.tokens += len(outcome.new_token_ids)
        state.nodes += np.bincount(grafted[1:], minlength=2)
        state.accepted += np.bincount(grafted[list(outcome.accepted)], minlength=2)
        state.passes += outcome.draft_passes

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = table_of(
            "What becomes of drafted tokens",
            "arm | accepted/step | with bonus | nodes/step:.1 | accepted / drafted:.1% | of the drafter's:.1%"
            " | of grafted phrases':.1% | draft passes/step:.1 | tokens / draft pass",
            "Accepted / drafted is the utilisation of the paper's table 4, for all nodes fed to the target, for the "
            "drafter's nodes and for those of grafted phrases. Tokens / draft pass is the figure of section 3.1.1.",
            rows=[[arm, *counts.cells()] for arm, counts in self.states.items()],
        )
        bonus = [{"with_bonus": row["accepted"] + 1} if "accepted" in row else {} for row in self.published]
        theirs = [{**row, **more} for row, more in zip(self.published, bonus, strict=True)]
        add_rows(table, theirs, PUBLISHED)
        if theirs:
            table.notes.append("The paper's accepted length excludes the bonus token, which is added here.")
        shown = {arm: counts for arm, counts in self.states.items() if counts.nodes.any()}
        return report_of(self, table, self._draw(shown) if shown else None)

    def _draw(self, shown: Mapping[str, Counts]) -> Figure:
        bars: dict[str, list[float]] = {}
        for arm, counts in shown.items():
            accepted, nodes = counts.accepted / counts.steps, counts.nodes / counts.steps  # [kind of node]
            bars[arm] = [*accepted, *(nodes - accepted)]
        for row in self.published:
            if {"accepted", "utilisation"} <= row.keys():
                rejected = row["accepted"] / row["utilisation"] - row["accepted"]
                bars[label_of(row)] = [row["accepted"], 0.0, rejected, 0.0]
        figure, [[axes]] = new_figure(8.5, 1.7 + 0.42 * len(bars), "What becomes of the tokens drafted in a step")
        ends = np.zeros(len(bars))
        for (name, color), widths in zip(KINDS.items(), zip(*bars.values(), strict=True), strict=True):
            axes.barh(range(len(bars)), widths, 0.66, ends, color=color, label=name)
            ends = ends + widths
        name_rows(axes, list(bars))
        label(axes, "tokens drafted in a step")
        legend_below(figure, 4)
        return figure


Questions = dict[int | str, NDArray[np.int64]]  # drafted and accepted nodes by question


class PrecutLearning(DraftingAnalysis[Questions]):
    """Running utilisation (accepted over drafted nodes) of each arm by question, in the order decoded.

    Nodes of grafted phrases are not counted, because the controller does not decide about them. Arms with and without
    reuse are thus comparable.
    """

    name: ClassVar[str] = "precut_learning"

    @override
    def new_state(self, parts: Parts) -> Questions:
        return {}

    @override
    def watch(self, arm: str, state: Questions, outcome: Outcome) -> None:
        own, question = ~grafted_rows(outcome.tree), outcome.context.sequence
        counts = np.array([own[1:].sum(), own[list(outcome.accepted)].sum()])  # drafted, accepted
        state[question] = state.get(question, np.zeros(2, dtype=np.int64)) + counts

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = table_of(
            "Accepted of drafted tokens, by question",
            "arm | questions:.0 | first half:.1% | second half:.1% | all:.1%",
            "Tokens of the drafter alone: grafted phrases cost no draft pass and are not counted.",
        )
        figure, [[axes]] = new_figure(7, 4)
        for arm, questions in self.states.items():
            found = np.array([[0, 0], *questions.values()])  # [questions + 1, drafted and accepted]
            middle = 1 + len(found) // 2
            halves = (found[:middle].sum(axis=0), found[middle:].sum(axis=0), found.sum(axis=0))
            shares = [over(int(accepted), int(drafted)) for drafted, accepted in halves]
            table.rows.append([arm, len(questions), *shares])
            running = self.running(arm)
            axes.plot(range(1, len(running) + 1), [100 * share for share in running], label=arm)
        axes.set_xlabel("questions decoded")
        label(axes, y="accepted / drafted so far (%)", low=0)
        if self.states:
            axes.legend()
        return report_of(self, table, figure)

    def running(self, arm: str) -> list[float]:
        """Return, after each question, accepted over drafted nodes so far; 0 until a node is drafted."""
        drafted, accepted = np.cumsum([[0, 0], *self.states[arm].values()], axis=0)[1:].T
        shares: list[float] = (accepted / np.maximum(drafted, 1)).tolist()
        return shares


Tries = NDArray[np.float64]
"""``[n, 4]``, one row per prefix: its step, its length, its product, whether all of it was accepted."""


class ConfidenceAcceptance(DraftingAnalysis[list[NDArray[np.float64]]]):
    """The product of the draft's probabilities along a drafted prefix against how often the whole prefix is accepted
    (eq. 6).

    Each prefix of a tree's most probable path, without grafts, is a try. Prefixes of one step share tokens, so the
    sample size of an interval (Wilson's) is a bin's number of steps, not of prefixes. If the output ended inside the
    path, longer prefixes are left out.
    """

    name: ClassVar[str] = "confidence_acceptance"
    edges: NDArray[np.float64] = np.concatenate(([0.0], np.geomspace(LOWEST, 1, 13)))
    """Edges of the bins of the product; the paper's bins of equal width hide long and unlikely drafts."""

    @override
    def watch(self, arm: str, state: list[NDArray[np.float64]], outcome: Outcome) -> None:
        tree = outcome.tree
        if tree.log_probs is None:
            return
        path = list(tree.best_path())
        # a prefix is accepted while the verifier walks down the same path
        same = [drafted == row for drafted, row in zip(path, outcome.accepted, strict=False)]
        accepted = [*same, False].index(False)
        # whether longer prefixes would have been accepted is unknown if the output ended first
        cut = ended_inside(outcome) and accepted == len(outcome.accepted)
        products = np.exp(np.cumsum(tree.log_probs[path], dtype=np.float64))  # equation 6, by length
        lengths = np.arange(1, (accepted if cut else len(path)) + 1)
        step = np.full(len(lengths), len(state))
        state.append(np.column_stack([step, lengths, products[: len(lengths)], lengths <= accepted]))

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        tries = {arm: np.concatenate(steps) for arm, steps in self.states.items() if steps}
        tries = {arm: rows for arm, rows in tries.items() if len(rows)}
        return report_of(self, self._table(tries), self._draw(tries) if tries else None)

    def _binned(self, tries: Tries) -> NDArray[np.float64]:
        """Return ``[bins, 7]``: prefixes, steps, mean length, mean product, accepted share, its interval; else nan."""
        place = np.digitize(tries[:, 2], self.edges[1:-1])
        found = np.full((len(self.edges) - 1, 7), np.nan)
        for number in range(len(found)):
            own = tries[place == number]
            steps = np.unique(own[:, 0]).size
            found[number, :2] = len(own), steps
            if steps:
                means = own[:, 1:].mean(axis=0)
                share = binomtest(round(means[-1] * steps), steps)
                found[number, 2:] = *means, *share.proportion_ci(method="wilson")
        return found

    def _table(self, tries: Mapping[str, Tries]) -> Table:
        table = table_of(
            "Product of confidences of a drafted prefix against its acceptance",
            "arm | product | prefixes | steps | mean length:.1 | mean product:.5 | accepted:.1%"
            " | accepted low:.1% | accepted high:.1% | rank correlation:.3 | rank correlation low:.3"
            " | rank correlation high:.3 | highest:.3 | highest low:.3 | highest high:.3",
            "Low, high: 95 % interval (Wilson's, Fisher's). Its size is the steps, as prefixes of a step share tokens.",
            "Rank correlation: Spearman's, between product and acceptance, over all prefixes. Highest: if the prefixes"
            " with the largest products were those accepted. It is below 1, since most prefixes are equally rejected.",
        )
        for arm, seen in tries.items():
            bins = zip(pairwise(self.edges), self._binned(seen).tolist(), strict=True)
            for (low, high), (count, steps, *rest) in bins:
                if count:
                    bounds = f"{low:.2g} to {high:.2g}"
                    table.rows.append([arm, bounds, int(count), int(steps), *rest, *[None] * 6])
            steps, means = np.unique(seen[:, 0]).size, seen[:, 1:].mean(axis=0).tolist()
            row: list[Cell] = [arm, "all", len(seen), steps, *means, None, None]
            for products, accepted in (seen[:, 2:].T, np.sort(seen[:, 2:], axis=0).T):
                correlation = rank_correlation(products, accepted)
                row += [correlation, *correlation_interval(correlation, steps)]
            table.rows.append(row)
        return table

    def _draw(self, tries: Mapping[str, Tries]) -> Figure:
        title = "How often a drafted sequence is accepted, by the product of its confidences"
        figure, [panels] = new_figure(1.0 + 4.3 * len(tries), 4.2, title, 1, len(tries), sharey=True)
        for points, (arm, seen) in zip(panels, tries.items(), strict=True):
            self._draw_arm(points, arm, seen)
        label(panels[0], y="share of prefixes accepted")
        legend_below(figure, 2, *panels[0].get_legend_handles_labels())
        return figure

    def _draw_arm(self, points: Axes, arm: str, seen: Tries) -> None:
        lowest = LOWEST / 10  # left end of the axis
        binned = self._binned(seen)
        product, share, low, high = binned[binned[:, 0] > 0, 3:].T
        low, high = (np.minimum(low, share), np.maximum(high, share))  # the interval is of a rounded number of tries
        diagonal, product = np.geomspace(lowest, 1, 200), np.maximum(product, 1.5 * lowest)
        points.plot(diagonal, diagonal, color=GRAY, lw=1, ls="--", label="acceptance = confidence")
        errors, name = [share - low, high - share], "accepted (95 % interval)"
        points.errorbar(product, share, errors, color=BLUE, marker="o", ms=5, lw=1.3, capsize=3, label=name)
        correlation = rank_correlation(seen[:, 2], seen[:, 3])
        text = "" if correlation is None else f"rank correlation {correlation:.2f}, "
        points.set_xscale("log")
        points.set_xlim(lowest, 1.02)
        title, axis = f"{arm}\n{text}{len(seen)} prefixes", "product of the draft's confidences"
        label(points, axis, title=title, low=-0.03, high=1.03)


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Return Spearman's rank correlation of two ``[n]`` arrays; None if one of them is constant."""
    if one.size < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(spearmanr(one, other).statistic)
