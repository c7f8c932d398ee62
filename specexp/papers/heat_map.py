"""Draft probability against acceptance and target probability (Xiong et al. 2024, figure 2)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specexp.bench.analysis import Analysis, drafting, visited
from specexp.bench.publish import Report
from specexp.core.sampling import Processors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Table
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts


class AcceptanceHeatMap(Analysis):
    """What the draft probability of a node says about its acceptance and about the target.

    Counted are the nodes the verifier really tried: the children of visited nodes in the order drawn, up to the
    accepted one. Their draft probability q is that of the token given its parent, before elder siblings are taken
    out; the target probability p is what the verifier's temperature, top-k and top-p make of the logits (a verifier
    without them is greedy: p is 0 or 1). An acceptance rate needs several tries, and the paper does not say which it
    takes: here it is that of every ``group`` consecutive tries of nearly the same q.

    Args:
        bins: columns of the maps over q, and rows over p.
        group: tries an acceptance rate is of.
        most_arms: arms in the picture, the first ones; the table has all.
    """

    name: ClassVar[str] = "draft_vs_acceptance"
    needs_models: ClassVar[bool] = True

    def __init__(
        self,
        bins: Annotated[int, Field(ge=2, le=100)] = 20,
        group: Annotated[int, Field(ge=2, le=100)] = 10,
        most_arms: Annotated[int, Field(ge=1)] = 4,
    ) -> None:
        self.bins = bins
        self.group = group
        self.most_arms = most_arms
        self._processors: dict[str, Processors] = {}
        self._tries: dict[str, list[tuple[float, float, bool]]] = {}

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Forget the tries."""
        greedy = Processors(temperature=0.0)
        self._processors = {
            arm: getattr(strategy.verifier, "processors", greedy) for arm, strategy in drafting(arms).items()
        }
        self._tries = {arm: [] for arm in self._processors}

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Note q, p and the fate of every node that was tried."""
        tree = outcome.tree
        if arm not in self._tries or tree.log_probs is None:
            return
        for depth, row in enumerate(visited(outcome)):
            children = dict.fromkeys(tree.draw_order(row))  # a token drawn again is one node
            if tree.grafted is not None:  # phrases have no q
                children = {child: None for child in children if not tree.grafted[child]}
            if not children:
                continue
            p = self._processors[arm].probabilities(outcome.logits[row])  # [V]
            accepted = outcome.accepted[depth] if depth < len(outcome.accepted) else None
            for child in children:
                q = float(np.exp(tree.log_probs[child]))
                self._tries[arm].append((q, float(p[tree.tokens[child]]), child == accepted))
                if child == accepted:
                    break

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """A table, and a picture if any arm's drafter gives probabilities."""
        tries = {arm: np.array(rows, dtype=np.float64) for arm, rows in self._tries.items() if rows}  # [n, 3]
        shown = dict(list(tries.items())[: self.most_arms])
        return Report({self.name: _table(tries)}, {self.name: self._draw(shown)} if shown else {})

    def _draw(self, tries: Mapping[str, NDArray[np.float64]]) -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.bench.pictures import INK

        figure = Figure(figsize=(9.2, 0.9 + 3.7 * len(tries)), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(
            "Draft probability against acceptance (left) and target probability (right)",
            fontsize=11,
            color=INK,
        )
        rows = figure.subplots(len(tries), 2, squeeze=False)
        edges = np.linspace(0, 1, self.bins + 1)
        levels = (
            np.arange(self.group + 2) - 0.5
        ) / self.group  # a rate of `group` tries has group + 1 values
        for (left, right), (arm, seen) in zip(rows, tries.items(), strict=True):
            q, p, accepted = seen.T
            mean = _column_means(q, accepted, edges)
            image = _heat(left, *_rates(q, accepted, edges, self.group), edges, levels)
            _line(left, edges, mean, "mean acceptance")
            left.set_ylabel(f"acceptance rate of {self.group} nodes", fontsize=9)
            left.set_title(f"{arm}: {len(q)} nodes tried", fontsize=9, loc="left", color=INK)
            _heat(right, q, p, edges, edges)
            _line(right, edges, _column_means(q, p, edges), "mean target probability")
            right.set_ylabel("target probability p", fontsize=9)
            right.set_title(
                f"correlation of p with q {_correlation(q, p):.2f}", fontsize=9, loc="left", color=INK
            )
            for axes in (left, right):
                axes.set_xlim(0, 1)
                axes.set_ylim(
                    -0.5 / self.group if axes is left else 0, 1 + (0.5 / self.group if axes is left else 0)
                )
                axes.set_xlabel("draft probability q of the node", fontsize=9)
                axes.tick_params(labelsize=8, colors=INK)
                axes.legend(loc="upper left", fontsize=7, framealpha=0.8)
            figure.colorbar(image, ax=[left, right], pad=0.01).set_label("share of the column", fontsize=8)
        return figure


def _rates(
    q: NDArray[np.float64], accepted: NDArray[np.float64], edges: NDArray[np.float64], group: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Middle of the column and acceptance rate of every ``group`` consecutive tries of a column."""
    column = _columns(q, edges)
    middles, rates = [], []
    for number, middle in enumerate((edges[:-1] + edges[1:]) / 2):
        own = accepted[column == number]
        groups = own[: own.size // group * group].reshape(-1, group)
        rates.append(groups.mean(axis=1))
        middles.append(np.full(len(groups), middle))
    return np.concatenate(middles), np.concatenate(rates)


def _columns(q: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Which column each q is in; 1 belongs to the last."""
    columns: NDArray[np.int64] = np.clip(np.searchsorted(edges, q, side="right") - 1, 0, edges.size - 2)
    return columns


def _column_means(
    q: NDArray[np.float64], values: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Mean of each column; nan where it is empty."""
    column = _columns(q, edges)
    count = np.bincount(column, minlength=edges.size - 1)
    total = np.bincount(column, values, minlength=edges.size - 1)
    means: NDArray[np.float64] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return means


def _heat(
    axes: "Axes",
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    edges: NDArray[np.float64],
    levels: NDArray[np.float64],
) -> "QuadMesh":
    """A map whose columns add up to one; empty cells stay white, rare ones visible."""
    from matplotlib.colors import PowerNorm

    counts, _, _ = np.histogram2d(x, np.clip(y, levels[0], levels[-1]), bins=(edges, levels))
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.ma.masked_equal(counts / np.maximum(totals, 1), 0)
    return axes.pcolormesh(
        edges, levels, shares.T, cmap="YlGnBu", norm=PowerNorm(0.5, vmin=0, vmax=1), rasterized=True
    )


def _line(axes: "Axes", edges: NDArray[np.float64], means: NDArray[np.float64], label: str) -> None:
    from specexp.bench.pictures import GREY, ORANGE

    axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
    axes.plot((edges[:-1] + edges[1:]) / 2, means, color=ORANGE, marker="o", ms=3, lw=1.4, label=label)


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Pearson's; nan where one of them never changes."""
    if one.size < 2 or one.std() == 0 or other.std() == 0:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


def _table(tries: Mapping[str, NDArray[np.float64]]) -> "Table":
    from specexp.bench.table import Column, Table

    table = Table(
        "Draft probability q against acceptance and target probability p, of the nodes tried",
        [
            Column("arm"),
            Column("q"),
            Column("nodes"),
            Column("mean q", 3),
            Column("accepted", 1, "%"),
            Column("mean p", 3),
            Column("correlation q, p", 3),
            Column("correlation q, accepted", 3),
        ],
    )
    for arm, (q, p, accepted) in ((arm, seen.T) for arm, seen in tries.items()):
        tenth = _columns(q, np.linspace(0, 1, 11))
        for number in range(10):
            own = tenth == number
            if own.any():
                means = [float(values[own].mean()) for values in (q, accepted, p)]
                table.rows.append(
                    [arm, f"{number / 10:.1f} to {(number + 1) / 10:.1f}", int(own.sum()), *means, None, None]
                )
        known = [
            value if value == value else None for value in (_correlation(q, p), _correlation(q, accepted))
        ]
        means = [float(values.mean()) for values in (q, accepted, p)]
        table.rows.append([arm, "all", len(q), *means, *known])
    return table
