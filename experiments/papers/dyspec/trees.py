"""A run's trees: sizes, and acceptance by child and by draft probability (Xiong et al. 2024)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import Field
from scipy.stats import binned_statistic, binomtest
from typing_extensions import override

from experiments.papers.shared import (
    DraftingAnalysis,
    correlation_interval,
    grafted_rows,
    label,
    report_of,
    table_of,
    visited,
    whole_numbers,
)
from specexp.bench.record import PromptRecord
from specexp.controllers import ThresholdTracker
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.sampling import Processors
from specexp.report.pictures import BLUE, GRAY, ORANGE, legend_below, new_figure
from specexp.report.publish import Report
from specexp.report.table import Column, columns

Values = NDArray[np.float64]
Sizes = list[tuple[int, int]]  # nodes and accepted nodes of each step


class TreeSizes(DraftingAnalysis[Sizes]):
    """Nodes and accepted nodes of every step of every arm that drafts (figure 5).

    An arm's budget is the mean number of nodes that its controller keeps to. Without one it is the arm's cap, the most
    nodes that its builder allows.

    Args:
        most_steps: Number of first steps of each arm in the picture; the table covers all steps.
        arms: Arms in the picture; all if None.
    """

    name: ClassVar[str] = "tree_sizes"

    def __init__(self, most_steps: Annotated[int, Field(ge=1)] = 300, arms: list[str] | None = None) -> None:
        super().__init__()
        self.most_steps = most_steps
        self.arms = arms

    @override
    def watch(self, arm: str, state: Sizes, outcome: Outcome) -> None:
        state.append((outcome.tree.num_nodes, len(outcome.accepted)))

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = table_of(
            "Size of the trees",
            "arm | steps | budget | mean nodes:.1 | median:.0 | largest | budget used:.1%"
            " | steps at the cap:.1% | accepted | accepted nodes:.1%",
            "In the last steps of an output, trees are no deeper than the number of tokens still wanted.",
        )
        seen = {arm: np.array(steps) for arm, steps in self.states.items() if steps}  # [steps, 2]
        for arm, steps in seen.items():
            nodes, accepted = steps.T  # [steps] each
            cap, budget, mean = self._cap(arm), self._budget(arm), float(nodes.mean())
            sizes = [mean, float(np.median(nodes)), int(nodes.max())]
            shares = [mean / budget, float((nodes >= cap).mean()), float(accepted.mean())]
            kept = float(accepted.sum() / nodes.sum()) if nodes.any() else None
            table.rows.append([arm, len(steps), budget, *sizes, *shares, kept])
        shown = {arm: steps for arm, steps in seen.items() if self.arms is None or arm in self.arms}
        return report_of(self, table, self._draw(shown) if shown else None)

    def _cap(self, arm: str) -> int:
        builder = self.parts[arm].builder
        assert builder is not None  # a builder built the trees
        return builder.max_nodes

    def _budget(self, arm: str) -> int:
        controller = self.parts[arm].controller
        if isinstance(controller, ThresholdTracker) and controller.aim == "budget":
            return controller.budget
        return self._cap(arm)

    def _draw(self, seen: Mapping[str, NDArray[np.int64]]) -> Figure:
        title, height = "Nodes drafted and accepted, step by step", 0.9 + 1.75 * len(seen)
        figure, panels = new_figure(9.5, height, title, len(seen), 1)
        for [panel], (arm, steps) in zip(panels, seen.items(), strict=True):
            budget, (nodes, accepted) = self._budget(arm), steps[: self.most_steps].T
            panel.stairs(nodes, np.arange(len(nodes) + 1) - 0.5, fill=True, color=GRAY, alpha=0.55, label="nodes")
            panel.plot(accepted, ".", ms=3, color=ORANGE, label="accepted nodes")
            panel.axhline(budget, color=BLUE, lw=0.9, ls="--", label="budget")
            panel.set_xlim(-0.5, len(nodes) - 0.5)
            label(panel, y="nodes", title=f"{arm} (mean {steps[:, 0].mean():.1f} of {budget})", low=0)
            whole_numbers(panel)
        label(panels[-1][0], f"step (the first {self.most_steps})")
        legend_below(figure, 3, *panels[0][0].get_legend_handles_labels())
        return figure


class AcceptanceVector(DraftingAnalysis[NDArray[np.int64]]):
    """Acceptance rates of the children of a visited node, in the order tried: the input from which Sequoia builds
    trees (Chen et al. 2024, section 3).

    Only nodes with at least ``width`` drawn children count, and only their first ``width`` draws. A token drawn again
    counts at its first place. The trees should be wide everywhere, such as those of ``KConfig``.

    ``acceptance.json`` describes the first arm that drafts: ``acceptance`` (``width`` probabilities, then the one that
    no child is accepted; they sum to one), ``visited`` (nodes counted), ``accepted`` (counts by child) and ``arm``.

    Args:
        width: Number of children counted per node.
    """

    name: ClassVar[str] = "acceptance"

    def __init__(self, width: Annotated[int, Field(ge=1)] = 8) -> None:
        super().__init__()
        self.width = width

    @override
    def new_state(self, parts: Parts) -> NDArray[np.int64]:
        return np.zeros(self.width + 1, dtype=np.int64)

    @override
    def watch(self, arm: str, state: NDArray[np.int64], outcome: Outcome) -> None:
        for depth, row in enumerate(visited(outcome)):
            tried = outcome.tree.draw_order(row)
            if len(tried) >= self.width:
                accepted = outcome.accepted[depth] if depth < len(outcome.accepted) else None
                place = tried.index(accepted) if accepted is not None else self.width
                state[min(place, self.width)] += 1

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        places = [Column(title, 3) for title in (*(f"#{n + 1}" for n in range(self.width)), "none")]
        title = "Which child of a visited node is accepted, in the order tried"
        table = table_of(title, [*columns("arm | nodes visited"), *places])
        files: dict[str, str] = {}
        for arm, counts in self.states.items():
            visits = int(counts.sum())
            shares = (counts / visits).tolist() if visits else [None] * (self.width + 1)
            table.rows.append([arm, visits, *shares])
            if not visits:
                table.notes.append(f"{arm}: no visited node had {self.width} children; lower width")
            elif arm == next(iter(self.states)):
                vector = {"acceptance": shares, "visited": visits, "accepted": counts[:-1].tolist(), "arm": arm}
                files["acceptance.json"] = json.dumps(vector, indent=2) + "\n"
        return Report({self.name: table}, files=files)


class AcceptanceHeatMap(DraftingAnalysis[list[tuple[float, float, float, float]]]):
    """Acceptance and target probability of a node by its draft probability (figure 2).

    The nodes are those that the verifier tried: the children of visited nodes in the order drawn, up to the accepted
    one. The draft probability q is the token's given its parent, before earlier siblings are removed. The residual, by
    which DySpec estimates acceptance, is q over the probability that these leave. The target probability p is taken
    after the verifier's temperature, top-k and top-p (a verifier without them is greedy: p is 0 or 1).
    """

    name: ClassVar[str] = "draft_vs_acceptance"
    needs_models: ClassVar[bool] = True
    bins = 20  # number of columns and of rows of the map

    @override
    def watch(self, arm: str, state: list[tuple[float, float, float, float]], outcome: Outcome) -> None:
        tree = outcome.tree
        if tree.log_probs is None:
            return
        grafted = grafted_rows(tree)  # phrases have no q
        processors = self.parts[arm].verifier.processors or Processors(temperature=0.0)
        for depth, row in enumerate(visited(outcome)):
            # a token drawn again is one node
            children = [child for child in dict.fromkeys(tree.draw_order(row)) if not grafted[child]]
            if not children:
                continue
            p = processors.probabilities(outcome.logits[row])  # [V]
            accepted = outcome.accepted[depth] if depth < len(outcome.accepted) else None
            left = 1.0  # draft probability that the elder siblings leave
            for child in children:  # in the order tried, up to the accepted one
                q = float(np.exp(tree.log_probs[child]))
                residual = min(1.0, q / left) if left > 0 else 1.0
                state.append((q, float(p[tree.tokens[child]]), float(child == accepted), residual))
                left -= q
                if child == accepted:
                    break

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        tries = {
            arm: pd.DataFrame(rows, columns=["q", "p", "accepted", "residual"])
            for arm, rows in self.states.items()
            if rows
        }
        table = table_of(
            "Draft probability q against acceptance and target probability p, of the nodes tried",
            "arm | q | nodes | mean q:.3 | accepted:.1% | accepted low:.1% | accepted high:.1% | mean p:.3"
            " | mean p low:.3 | mean p high:.3 | mean residual:.3 | correlation q, p:.3 | correlation q, accepted:.3"
            " | correlation q, p low:.3 | correlation q, p high:.3",
            "95 % intervals take the nodes as independent, which those of a step are not, so they are too narrow.",
        )
        for arm, seen in tries.items():
            for tenth, own in seen.groupby(np.digitize(seen.q, np.linspace(0, 1, 11)[1:-1])):
                bounds = f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}"
                table.rows.append([arm, bounds, len(own), *_means(own), *[None] * 4])
            known = [_known(seen.q.corr(seen[other])) for other in ("p", "accepted")]
            table.rows.append(
                [arm, "all", len(seen), *_means(seen), *known, *correlation_interval(known[0], len(seen))]
            )
        return report_of(self, table, self._draw(tries) if tries else None)

    def _draw(self, tries: Mapping[str, pd.DataFrame]) -> Figure:
        title = "Target probability p of the nodes tried, and their mean acceptance, by draft probability q"
        figure, [panels] = new_figure(1 + 4.6 * len(tries), 4.6, title, 1, len(tries), sharey=True)
        edges = np.linspace(0, 1, self.bins + 1)
        for axes, (arm, seen) in zip(panels, tries.items(), strict=True):
            q, p, accepted, _ = seen.to_numpy().T
            counts, _, _ = np.histogram2d(q, p, bins=(edges, edges))
            # every column adds up to one; empty cells stay white, and the power keeps rare ones visible
            shares = np.ma.masked_equal(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), 0)
            norm = PowerNorm(0.5, vmin=0, vmax=1)
            image = axes.pcolormesh(edges, edges, shares.T, cmap="YlGnBu", norm=norm, rasterized=True)
            axes.plot([0, 1], [0, 1], color=GRAY, lw=1, ls="--")
            for name, values, color in (("mean p", p, BLUE), ("mean acceptance", accepted, ORANGE)):
                means = binned_statistic(q, values, bins=edges).statistic  # nan in empty columns, which are not drawn
                axes.plot((edges[:-1] + edges[1:]) / 2, means, color=color, marker="o", ms=3, lw=1.4, label=name)
            label(axes, "draft probability q", title=f"{arm}: {len(q)} nodes tried", low=0, high=1)
        label(panels[0], y="target probability p")
        figure.colorbar(image, ax=panels, pad=0.01).set_label("share of the column", fontsize=8)
        legend_below(figure, 2, *panels[0].get_legend_handles_labels())
        return figure


def _means(seen: pd.DataFrame) -> list[float]:
    """Return the means of q, acceptance and p, the latter two with 95 % intervals, and of the residual."""
    taken = binomtest(int(seen.accepted.sum()), len(seen)).proportion_ci(method="wilson")
    p, half = float(seen.p.mean()), 1.96 * float(seen.p.std(ddof=0)) / len(seen) ** 0.5
    accepted = [float(seen.accepted.mean()), *map(float, taken)]
    return [float(seen.q.mean()), *accepted, p, p - half, p + half, float(seen.residual.mean())]


def _known(value: Any) -> float | None:
    """Return a correlation as a float; None if it is undefined (one variable is constant)."""
    return None if np.isnan(value) else float(value)
