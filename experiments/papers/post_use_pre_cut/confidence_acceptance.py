"""What the product of a draft's confidences says about its acceptance (Post-use & Pre-cut, eq. 6 and figure 2c)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import Field
from scipy.stats import spearmanr
from typing_extensions import override

from specexp.bench.analysis import Analysis, drafting, ended_inside
from specexp.bench.pictures import BLUE, GREY, INK, legend_below, new_figure
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Table, columns
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts

QUANTILE_95 = 1.959964
LOWEST = 1e-4
"""Product below which a logarithmic scale has one bin."""

Tries = NDArray[np.float64]
"""``[n, 4]`` of every prefix: its step, its length, its product, whether all of it was accepted."""


class ConfidenceAcceptance(Analysis):
    """The product of the draft's probabilities along a drafted prefix against how often the whole prefix is accepted.

    Looked at is the most probable path of every tree, in a chain the chain itself, without grafts: each of its
    prefixes of 1, 2, ... tokens is a try. Prefixes of one step share tokens, so an interval (Wilson's) counts a bin's
    steps, not its prefixes. Where the output ended inside the path, longer prefixes are left out.

    Args:
        bins: Bins of the product.
        scale: Whether they are of equal width (``linear``, as in the paper) or, but for the first, of equal ratio up
            from a ten-thousandth (``log``), which shows long drafts and unsure ones.
        most_arms: Arms in the picture, the first ones; the table has all.
    """

    name: ClassVar[str] = "confidence_acceptance"

    def __init__(
        self,
        bins: Annotated[int, Field(ge=2, le=100)] = 10,
        scale: Literal["linear", "log"] = "linear",
        most_arms: Annotated[int, Field(ge=1)] = 4,
    ) -> None:
        self.bins = bins
        self.scale = scale
        self.most_arms = most_arms
        self._steps: dict[str, int] = {}
        self._tries: dict[str, list[tuple[int, int, float, bool]]] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._tries = {arm: [] for arm in drafting(arms)}
        self._steps = dict.fromkeys(self._tries, 0)

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        tree = outcome.tree
        if arm not in self._tries or tree.log_probs is None:
            return
        path = list(tree.best_path())
        same = [drafted == row for drafted, row in zip(path, outcome.accepted, strict=False)]
        accepted = [*same, False].index(False)
        cut = ended_inside(outcome) and accepted == len(outcome.accepted)
        products = np.exp(np.cumsum(tree.log_probs[path], dtype=np.float64))
        step = self._steps[arm]
        self._steps[arm] += 1
        self._tries[arm] += [
            (step, length, float(product), length <= accepted)
            for length, product in enumerate(products[: accepted if cut else len(path)], start=1)
        ]

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        tries = {arm: np.array(rows, dtype=np.float64) for arm, rows in self._tries.items() if rows}
        table = self._table(tries)
        shown = dict(list(tries.items())[: self.most_arms])
        return Report({self.name: table}, {self.name: self._draw(shown)} if shown else {})

    @property
    def edges(self) -> NDArray[np.float64]:
        """``[bins + 1]`` of the products, from 0 to 1."""
        if self.scale == "linear":
            return np.linspace(0, 1, self.bins + 1)
        return np.concatenate(([0.0], np.geomspace(LOWEST, 1, self.bins)))

    def _binned(self, tries: Tries) -> NDArray[np.float64]:
        """``[bins, 7]`` prefixes, steps, mean length and product, accepted share, its interval; nan in empty bins."""
        place = np.digitize(tries[:, 2], self.edges[1:-1])
        found = np.full((self.bins, 7), np.nan)
        for number in range(self.bins):
            own = tries[place == number]
            steps = np.unique(own[:, 0]).size
            found[number, :2] = len(own), steps
            if steps:
                means = own[:, 1:].mean(axis=0)
                found[number, 2:] = *means, *wilson_interval(float(means[-1]), steps)
        return found

    def _table(self, tries: Mapping[str, Tries]) -> Table:
        table = Table(
            "Product of confidences of a drafted prefix against its acceptance",
            columns(
                "arm | product | prefixes | steps | mean length:.1 | mean product:.5 | accepted:.1% | from:.1%"
                " | to:.1% | rank correlation:.3"
            ),
            notes=[
                "From, to: 95 % interval (Wilson) of as many tries as the bin has steps: prefixes of one share tokens.",
                "Rank correlation: Spearman's, of all prefixes, between product and acceptance.",
            ],
        )
        edges = self.edges
        for arm, seen in tries.items():
            for number, (count, steps, *rest) in enumerate(self._binned(seen).tolist()):
                if count:
                    label = f"{edges[number]:.2g} to {edges[number + 1]:.2g}"
                    table.rows.append([arm, label, int(count), int(steps), *rest, None])
            correlation = rank_correlation(seen[:, 2], seen[:, 3])
            told = None if np.isnan(correlation) else correlation
            steps, means = np.unique(seen[:, 0]).size, seen[:, 1:].mean(axis=0).tolist()
            table.rows.append([arm, "all", len(seen), steps, *means, None, None, told])
        return table

    def _draw(self, tries: Mapping[str, Tries]) -> Figure:
        title = "How often a drafted sequence is accepted, by the product of its confidences"
        width = 1.0 + 4.3 * len(tries)
        figure, grid = new_figure(
            width, 5.2, title, 2, len(tries), height_ratios=(3, 1), sharex=True, sharey="row"
        )
        for points, counts, (arm, seen) in zip(*grid, tries.items(), strict=True):
            self._draw_arm(points, counts, arm, seen)
        above, below = (row[0] for row in grid)
        above.set_ylabel("share of prefixes accepted", fontsize=9)
        below.set_ylabel("count", fontsize=9)
        handles = [*above.get_legend_handles_labels()[0], *below.get_legend_handles_labels()[0]]
        legend_below(figure, 4, handles, [handle.get_label() for handle in handles])
        return figure

    def _draw_arm(self, points: Axes, counts: Axes, arm: str, seen: Tries) -> None:
        binned, edges = self._binned(seen), self.edges
        product, share, low, high = binned[binned[:, 0] > 0, 3:].T
        diagonal = np.linspace(0, 1, 200)
        if self.scale == "log":
            diagonal = np.geomspace(LOWEST / 10, 1, 200)
            product = np.maximum(product, 1.5 * LOWEST / 10)  # of the first bin, else left of the axis
            edges[0] = LOWEST / 10
            counts.set_xscale("log")
        points.plot(diagonal, diagonal, color=GREY, lw=1, ls="--", label="accepted as often as it says")
        errors, label = [share - low, high - share], "accepted (95 % interval)"
        points.errorbar(product, share, errors, color=BLUE, marker="o", ms=5, lw=1.3, capsize=3, label=label)
        correlation = rank_correlation(seen[:, 2], seen[:, 3])
        told = "" if np.isnan(correlation) else f"rank correlation {correlation:.2f}, "
        points.set_title(f"{arm}\n{told}{len(seen)} prefixes", fontsize=9, loc="left", color=INK)
        points.set_ylim(-0.03, 1.03)
        for values, colour, label in ((binned[:, 0], GREY, "prefixes"), (binned[:, 1], BLUE, "steps")):
            heights = np.maximum(values, 0.5)
            counts.stairs(heights, edges, baseline=0.5, fill=True, color=colour, label=label)
        counts.set_yscale("log")
        counts.set_xlabel("product of the draft's confidences", fontsize=9)
        counts.set_xlim(edges[0], 1.02)


def wilson_interval(share: float, tries: int) -> tuple[float, float]:
    """Interval of a share of so many independent tries; scipy's takes whole numbers of successes only."""
    square = QUANTILE_95**2
    middle = (share + square / (2 * tries)) / (1 + square / tries)
    half = QUANTILE_95 / (1 + square / tries) * np.sqrt(share * (1 - share) / tries + square / (4 * tries**2))
    return min(share, float(middle - half)), max(share, float(middle + half))  # rounding, at 0 and at 1


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Spearman's of two ``[n]``; nan where one of them never changes, without scipy's warning."""
    if one.size < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(spearmanr(one, other).statistic)
