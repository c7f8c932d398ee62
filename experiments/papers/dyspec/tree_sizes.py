"""How large the trees are, step by step, and how much of them is accepted (Xiong et al. 2024, figure 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.pictures import BLUE, GREY, INK, ORANGE, new_figure, whole_numbers
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Table, columns
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts


class TreeSizes(Analysis):
    """Nodes and accepted nodes of every step of every arm that drafts.

    An arm's budget is what its controller keeps the mean at, or else the most nodes its builder allows, its cap.

    Args:
        most_steps: Steps of each arm in the picture, the first ones; the table is of all.
        arms: Arms in the picture; all if None.
    """

    name: ClassVar[str] = "tree_sizes"

    def __init__(self, most_steps: Annotated[int, Field(ge=1)] = 300, arms: list[str] | None = None) -> None:
        self.most_steps = most_steps
        self.arms = arms
        self._budgets: dict[str, int] = {}
        self._caps: dict[str, int] = {}
        self._steps: dict[str, list[tuple[int, int]]] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        drafts = drafting(arms)
        self._caps = {arm: parts.builder.max_nodes for arm, parts in drafts.items() if parts.builder}
        self._budgets = {arm: drafts[arm].controller.mean_nodes or cap for arm, cap in self._caps.items()}
        self._steps = {arm: [] for arm in self._budgets}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        if arm in self._steps:
            self._steps[arm].append((outcome.tree.num_nodes, len(outcome.accepted)))

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = Table(
            "Size of the trees",
            columns(
                "arm | steps | budget | mean nodes:.1 | median:.0 | largest | budget used:.1%"
                " | steps at the cap:.1% | accepted | accepted nodes:.1%"
            ),
            notes=["The last steps of an output may draft no deeper than the tokens still wanted."],
        )
        seen = {arm: np.array(steps) for arm, steps in self._steps.items() if steps}  # [steps, 2]
        for arm, steps in seen.items():
            nodes, accepted = steps.T
            budget, mean = self._budgets[arm], float(nodes.mean())
            sizes = [mean, float(np.median(nodes)), int(nodes.max())]
            shares = [mean / budget, float((nodes >= self._caps[arm]).mean()), float(accepted.mean())]
            kept = float(accepted.sum() / nodes.sum()) if nodes.any() else None
            table.rows.append([arm, len(steps), budget, *sizes, *shares, kept])
        shown = {arm: steps for arm, steps in seen.items() if self.arms is None or arm in self.arms}
        return Report({self.name: table}, {self.name: self._draw(shown)} if shown else {})

    def _draw(self, seen: Mapping[str, NDArray[np.int64]]) -> Figure:
        title, height = "Nodes drafted and accepted, step by step", 0.7 + 1.75 * len(seen)
        figure, panels = new_figure(9.5, height, title, len(seen), 2, width_ratios=(4, 1), sharey="row")
        for (panel, side), (arm, steps) in zip(panels, seen.items(), strict=True):
            budget, sizes = self._budgets[arm], steps[:, 0]
            nodes, accepted = steps[: self.most_steps].T
            highest = max(budget, int(sizes.max()), 1)
            panel.stairs(nodes, np.arange(len(nodes) + 1) - 0.5, fill=True, color=GREY, alpha=0.55)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            panel.set_ylim(0, 1.15 * highest)
            panel.set_ylabel("nodes", fontsize=8, color=INK)
            panel.set_title(f"{arm} (mean {sizes.mean():.1f} of {budget})", fontsize=9, loc="left")
            panel.set_xlim(-0.5, len(nodes) - 0.5)
            scale = panel.twinx()
            scale.plot(accepted, ".", ms=3, color=ORANGE)
            scale.set_ylim(0, 1.15 * max(int(steps[:, 1].max()), 1))
            scale.set_ylabel("accepted", fontsize=8, color=ORANGE)
            whole_numbers(scale)
            scale.tick_params(labelsize=8, colors=INK)
            scale.spines["top"].set_visible(False)
            bins = np.linspace(0, 1.0001 * highest, min(highest, 32) + 2).tolist()
            shares = np.full(len(steps), 100 / len(steps))
            side.hist(sizes, bins=bins, orientation="horizontal", color=GREY, weights=shares)
            for axes in (panel, side):
                axes.axhline(budget, color=BLUE, lw=0.9, ls="--")
        panels[-1][0].set_xlabel(
            f"step (grey: nodes, dashed: the budget, orange: accepted nodes; the first {self.most_steps})",
            fontsize=8,
        )
        panels[-1][1].set_xlabel("% of all steps", fontsize=8)
        return figure
