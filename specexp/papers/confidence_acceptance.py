"""What the product of a draft's confidences says about its acceptance (Post-use & Pre-cut, eq. 6 and figure 2c)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.publish import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Cell, Table
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts

QUANTILE_95 = 1.959964
LOWEST = 1e-4
"""Product below which a logarithmic scale has one bin."""


class ConfidenceAcceptance(Analysis):
    """The product of the draft's probabilities along a drafted prefix against how often the whole prefix is accepted.

    Looked at is the most probable path of every tree, in a chain the chain itself, without grafts: each of its
    prefixes of 1, 2, ... tokens is a try. Prefixes of one step share tokens, so an interval (Wilson's) counts a bin's
    steps, not its prefixes. Where the output ended inside the path, longer prefixes are left out.

    Args:
        bins: of the product.
        scale: whether they are of equal width (``linear``, as in the paper) or, but for the first, of equal ratio up
            from a ten-thousandth (``log``), which shows long drafts and unsure ones.
        most_arms: arms in the picture, the first ones; the table has all.
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

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Forget the tries."""
        self._tries = {arm: [] for arm in drafting(arms)}
        self._steps = dict.fromkeys(self._tries, 0)

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Note every prefix of the most probable path: its step, length, product of confidences and fate."""
        tree = outcome.tree
        if arm not in self._tries or tree.log_probs is None:
            return
        path = list(tree.best_path())
        ended = len(outcome.new_token_ids) == len(outcome.accepted)  # without a bonus token
        accepted = 0
        while (
            accepted < min(len(path), len(outcome.accepted)) and path[accepted] == outcome.accepted[accepted]
        ):
            accepted += 1
        known = accepted if ended and accepted == len(outcome.accepted) else len(path)
        products = np.exp(np.cumsum(tree.log_probs[path], dtype=np.float64))
        step = self._steps[arm]
        self._steps[arm] += 1
        self._tries[arm] += [
            (step, length, float(product), length <= accepted)
            for length, product in enumerate(products[:known], start=1)
        ]

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """A table, and a picture if any arm's drafter gives probabilities."""
        tries = {arm: np.array(rows, dtype=np.float64) for arm, rows in self._tries.items() if rows}  # [n, 4]
        table = self._table(tries)
        shown = dict(list(tries.items())[: self.most_arms])
        return Report({self.name: table}, {self.name: self._draw(shown)} if shown else {})

    @property
    def edges(self) -> NDArray[np.float64]:
        """``[bins + 1]`` of the products, from 0 to 1."""
        if self.scale == "linear":
            return np.linspace(0, 1, self.bins + 1)
        return np.concatenate(([0.0], np.geomspace(LOWEST, 1, self.bins)))

    def _place(self, tries: NDArray[np.float64]) -> NDArray[np.int64]:
        """``[n]`` bin of every try; 1 belongs to the last."""
        places: NDArray[np.int64] = np.clip(
            np.searchsorted(self.edges, tries[:, 2], side="right") - 1, 0, self.bins - 1
        )
        return places

    def _binned(self, tries: NDArray[np.float64]) -> NDArray[np.float64]:
        """``[bins, 6]`` prefixes, steps, mean product, accepted share, and its interval; nan where a bin is empty."""
        step, _, product, accepted = tries.T
        place = self._place(tries)
        found = np.full((self.bins, 6), np.nan)
        for number in range(self.bins):
            own = place == number
            count, steps = int(own.sum()), np.unique(step[own]).size
            found[number, :2] = count, steps
            if count:
                share = float(accepted[own].mean())
                found[number, 2:] = product[own].mean(), share, *wilson_interval(share, steps)
        return found

    def _table(self, tries: "Mapping[str, NDArray[np.float64]]") -> "Table":
        from specexp.bench.table import Column, Table

        table = Table(
            "Product of confidences of a drafted prefix against its acceptance",
            [
                Column("arm"),
                Column("product"),
                Column("prefixes"),
                Column("steps"),
                Column("mean length", 1),
                Column("mean product", 5),
                Column("accepted", 1, "%"),
                Column("from", 1, "%"),
                Column("to", 1, "%"),
                Column("rank correlation", 3),
            ],
            notes=[
                "From, to: 95 % interval (Wilson) of as many tries as the bin has steps: prefixes of one share tokens.",
                "Rank correlation: Spearman's, of all prefixes, between product and acceptance.",
            ],
        )
        for arm, seen in tries.items():
            place, edges = self._place(seen), self.edges
            for number, (count, steps, *rest) in enumerate(self._binned(seen).tolist()):
                if count:
                    label = f"{edges[number]:.2g} to {edges[number + 1]:.2g}"
                    length = float(seen[place == number, 1].mean())
                    table.rows.append([arm, label, int(count), int(steps), length, *rest, None])
            correlation = rank_correlation(seen[:, 2], seen[:, 3])
            whole: list[Cell] = [float(value) for value in seen[:, 1:].mean(axis=0)]
            told = None if np.isnan(correlation) else correlation
            steps = np.unique(seen[:, 0]).size
            table.rows.append([arm, "all", len(seen), steps, *whole, None, None, told])
        return table

    def _draw(self, tries: "Mapping[str, NDArray[np.float64]]") -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.bench.pictures import BLUE, GREY, INK

        figure = Figure(figsize=(1.0 + 4.3 * len(tries), 5.2), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(
            "How often a drafted sequence is accepted, by the product of its confidences",
            fontsize=11,
            color=INK,
        )
        grid = figure.subplots(2, len(tries), squeeze=False, height_ratios=(3, 1), sharex=True, sharey="row")
        for (points, counts), (arm, seen) in zip(grid.T, tries.items(), strict=True):
            binned = self._binned(seen)
            filled = binned[binned[:, 0] > 0]
            _, _, product, share, low, high = filled.T
            diagonal = np.linspace(0, 1, 200) if self.scale == "linear" else np.geomspace(LOWEST / 10, 1, 200)
            points.plot(diagonal, diagonal, color=GREY, lw=1, ls="--", label="accepted as often as it says")
            if self.scale == "log":
                product = np.maximum(product, 1.5 * LOWEST / 10)  # of the first bin, else left of the axis
            points.errorbar(
                product, share, yerr=[share - low, high - share], color=BLUE, marker="o", ms=5, lw=1.3, capsize=3,
                label="accepted (95 % interval)",
            )  # fmt: skip
            correlation = rank_correlation(seen[:, 2], seen[:, 3])
            told = "" if np.isnan(correlation) else f"rank correlation {correlation:.2f}, "
            points.set_title(f"{arm}\n{told}{len(seen)} prefixes", fontsize=9, loc="left", color=INK)
            points.set_ylim(-0.03, 1.03)
            edges = self.edges.copy()
            if self.scale == "log":
                edges[0] = LOWEST / 10
                counts.set_xscale("log")
            for values, colour, label in ((binned[:, 0], GREY, "prefixes"), (binned[:, 1], BLUE, "steps")):
                counts.stairs(
                    np.maximum(values, 0.5), edges, baseline=0.5, fill=True, color=colour, label=label
                )
            counts.set_yscale("log")
            counts.set_xlabel("product of the draft's confidences", fontsize=9)
            counts.set_xlim(edges[0], 1.02)
            for axes in (points, counts):
                axes.tick_params(labelsize=8, colors=INK)
                axes.spines[["top", "right"]].set_visible(False)
        grid[0][0].set_ylabel("share of prefixes accepted", fontsize=9)
        grid[1][0].set_ylabel("count", fontsize=9)
        handles = [*grid[0][0].get_legend_handles_labels()[0], *grid[1][0].get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
        return figure


def wilson_interval(share: float, tries: int) -> tuple[float, float]:
    """Interval of a share of so many independent tries."""
    square = QUANTILE_95**2
    middle = (share + square / (2 * tries)) / (1 + square / tries)
    half = QUANTILE_95 / (1 + square / tries) * np.sqrt(share * (1 - share) / tries + square / (4 * tries**2))
    return min(share, float(middle - half)), max(share, float(middle + half))  # rounding, at 0 and at 1


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Spearman's of two ``[n]``, equal values sharing their mean rank; nan where one of them never changes."""
    if one.size < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks
