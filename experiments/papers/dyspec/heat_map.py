"""Draft probability against acceptance and target probability (Xiong et al. 2024, figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import Field
from scipy.stats import binned_statistic
from typing_extensions import override

from specexp.bench.analysis import Analysis, drafting, grafted_rows, visited
from specexp.bench.pictures import GREY, INK, ORANGE, new_figure
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Table, columns
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.sampling import Processors

Values = NDArray[np.float64]


class AcceptanceHeatMap(Analysis):
    """What the draft probability of a node says about its acceptance and about the target.

    Counted are the nodes the verifier really tried: the children of visited nodes in the order drawn, up to the
    accepted one. Their draft probability q is that of the token given its parent, before elder siblings are taken
    out; the target probability p is what the verifier's temperature, top-k and top-p make of the logits (a verifier
    without them is greedy: p is 0 or 1). An acceptance rate needs several tries, and the paper does not say which it
    takes: here it is that of every ``group`` consecutive tries of nearly the same q.

    Args:
        bins: Columns of the maps over q, and rows over p.
        group: Tries that an acceptance rate is of.
        most_arms: Arms in the picture, the first ones; the table has all.
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
        self._tries: dict[str, list[tuple[float, float, float]]] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        greedy = Processors(temperature=0.0)
        self._processors = {
            arm: getattr(parts.verifier, "processors", greedy) for arm, parts in drafting(arms).items()
        }
        self._tries = {arm: [] for arm in self._processors}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        tree = outcome.tree
        if arm not in self._tries or tree.log_probs is None:
            return
        grafted = grafted_rows(tree)  # phrases have no q
        for depth, row in enumerate(visited(outcome)):
            # a token drawn again is one node
            children = [child for child in dict.fromkeys(tree.draw_order(row)) if not grafted[child]]
            if not children:
                continue
            p = self._processors[arm].probabilities(outcome.logits[row])  # [V]
            accepted = outcome.accepted[depth] if depth < len(outcome.accepted) else None
            for child in children:
                q = float(np.exp(tree.log_probs[child]))
                self._tries[arm].append((q, float(p[tree.tokens[child]]), float(child == accepted)))
                if child == accepted:
                    break

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        tries = {
            arm: pd.DataFrame(rows, columns=["q", "p", "accepted"])
            for arm, rows in self._tries.items()
            if rows
        }
        shown = dict(list(tries.items())[: self.most_arms])
        return Report({self.name: _table(tries)}, {self.name: self._draw(shown)} if shown else {})

    def _draw(self, tries: Mapping[str, pd.DataFrame]) -> Figure:
        title = "Draft probability against acceptance (left) and target probability (right)"
        figure, rows = new_figure(9.2, 0.9 + 3.7 * len(tries), title, len(tries), 2)
        edges = np.linspace(0, 1, self.bins + 1)
        # a rate of `group` tries has group + 1 values
        levels = (np.arange(self.group + 2) - 0.5) / self.group
        for (left, right), (arm, seen) in zip(rows, tries.items(), strict=True):
            q, p, accepted = seen.to_numpy().T
            image = _heat(left, *_rates(q, accepted, edges, self.group), edges, levels)
            _line(left, edges, q, accepted, "mean acceptance")
            left.set_ylim(levels[0], levels[-1])
            left.set_ylabel(f"acceptance rate of {self.group} nodes", fontsize=9)
            left.set_title(f"{arm}: {len(q)} nodes tried", fontsize=9, loc="left", color=INK)
            _heat(right, q, p, edges, edges)
            _line(right, edges, q, p, "mean target probability")
            right.set_ylim(0, 1)
            right.set_ylabel("target probability p", fontsize=9)
            told = f"correlation of p with q {seen.q.corr(seen.p):.2f}"
            right.set_title(told, fontsize=9, loc="left", color=INK)
            for axes in (left, right):
                axes.set_xlim(0, 1)
                axes.set_xlabel("draft probability q of the node", fontsize=9)
                axes.legend(loc="upper left", fontsize=7, framealpha=0.8)
            figure.colorbar(image, ax=[left, right], pad=0.01).set_label("share of the column", fontsize=8)
        return figure


def _rates(q: Values, accepted: Values, edges: Values, group: int) -> tuple[Values, Values]:
    """Middle of the column and acceptance rate of every ``group`` consecutive tries of a column."""
    column = np.digitize(q, edges[1:-1])
    middles, rates = [], []
    for number, middle in enumerate((edges[:-1] + edges[1:]) / 2):
        own = accepted[column == number]
        groups = own[: own.size // group * group].reshape(-1, group)
        rates.append(groups.mean(axis=1))
        middles.append(np.full(len(groups), middle))
    return np.concatenate(middles), np.concatenate(rates)


def _heat(axes: Axes, x: Values, y: Values, edges: Values, levels: Values) -> QuadMesh:
    """A map whose columns add up to one; empty cells stay white, rare ones visible."""
    counts, _, _ = np.histogram2d(x, np.clip(y, levels[0], levels[-1]), bins=(edges, levels))
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.ma.masked_equal(counts / np.maximum(totals, 1), 0)
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    return axes.pcolormesh(edges, levels, shares.T, cmap="YlGnBu", norm=norm, rasterized=True)


def _line(axes: Axes, edges: Values, q: Values, values: Values, label: str) -> None:
    """Mean of each column, none where it is empty."""
    means = binned_statistic(q, values, bins=edges).statistic
    axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
    axes.plot((edges[:-1] + edges[1:]) / 2, means, color=ORANGE, marker="o", ms=3, lw=1.4, label=label)


def _table(tries: Mapping[str, pd.DataFrame]) -> Table:
    table = Table(
        "Draft probability q against acceptance and target probability p, of the nodes tried",
        columns(
            "arm | q | nodes | mean q:.3 | accepted:.1% | mean p:.3"
            " | correlation q, p:.3 | correlation q, accepted:.3"
        ),
    )
    for arm, seen in tries.items():
        for tenth, own in seen.groupby(np.digitize(seen.q, np.linspace(0, 1, 11)[1:-1])):
            label = f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}"
            table.rows.append([arm, label, len(own), *_means(own), None, None])
        told = [_known(seen.q.corr(seen[other])) for other in ("p", "accepted")]
        table.rows.append([arm, "all", len(seen), *_means(seen), *told])
    return table


def _means(seen: pd.DataFrame) -> list[float]:
    return [float(seen[name].mean()) for name in ("q", "accepted", "p")]


def _known(value: Any) -> float | None:
    """None for the correlation with what never changes."""
    return None if np.isnan(value) else float(value)
