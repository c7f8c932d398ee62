"""How large the trees are, step by step, and how much of them is accepted (Xiong et al. 2024, figure 5)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.publish import Report
from specexp.controllers import ThresholdTracker

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Controller, Parts


class TreeSizes(Analysis):
    """Nodes and accepted nodes of every step of every arm that drafts.

    An arm's budget is what its controller keeps the mean at, or else the most nodes its builder allows, its cap.

    Args:
        most_steps: steps of each arm in the picture, the first ones; the table is of all.
        arms: arms in the picture; all if None.
    """

    name: ClassVar[str] = "tree_sizes"

    def __init__(self, most_steps: Annotated[int, Field(ge=1)] = 300, arms: list[str] | None = None) -> None:
        self.most_steps = most_steps
        self.arms = arms
        self._budgets: dict[str, int] = {}
        self._caps: dict[str, int] = {}
        self._steps: dict[str, list[tuple[int, int]]] = {}

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Forget the steps."""
        drafts = drafting(arms)
        self._caps = {arm: strategy.builder.max_nodes for arm, strategy in drafts.items() if strategy.builder}
        self._budgets = {arm: _budget(drafts[arm].controller) or cap for arm, cap in self._caps.items()}
        self._steps = {arm: [] for arm in self._budgets}

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Note how large the tree was and how much of it was accepted."""
        if arm in self._steps:
            self._steps[arm].append((outcome.tree.num_nodes, len(outcome.accepted)))

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """A table, and a picture if any arm drafts."""
        from specexp.bench.table import Column, Table

        table = Table(
            "Size of the trees",
            [
                Column("arm"),
                Column("steps"),
                Column("budget"),
                Column("mean nodes", 1),
                Column("median", 0),
                Column("largest"),
                Column("budget used", 1, "%"),
                Column("steps at the cap", 1, "%"),
                Column("accepted", 2),
                Column("accepted nodes", 1, "%"),
            ],
            notes=["The last steps of an output may draft no deeper than the tokens still wanted."],
        )
        seen = {arm: np.array(steps) for arm, steps in self._steps.items() if steps}  # [steps, 2]
        for arm, steps in seen.items():
            nodes, accepted = steps.T
            budget = self._budgets[arm]
            capped = (nodes >= self._caps[arm]).mean()
            share = accepted.sum() / nodes.sum() if nodes.any() else None
            table.rows.append(
                [
                    arm,
                    len(steps),
                    budget,
                    float(nodes.mean()),
                    float(np.median(nodes)),
                    int(nodes.max()),
                    float(nodes.mean() / budget),
                    float(capped),
                    float(accepted.mean()),
                    None if share is None else float(share),
                ]
            )
        shown = {arm: steps for arm, steps in seen.items() if self.arms is None or arm in self.arms}
        return Report({self.name: table}, {self.name: self._draw(shown)} if shown else {})

    def _draw(self, seen: "Mapping[str, np.typing.NDArray[np.int64]]") -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.bench.pictures import BLUE, GREY, INK, ORANGE

        figure = Figure(figsize=(9.5, 0.7 + 1.75 * len(seen)), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle("Nodes drafted and accepted, step by step", fontsize=11, color=INK)
        panels = figure.subplots(len(seen), 2, squeeze=False, width_ratios=(4, 1), sharey="row")
        for (panel, side), (arm, steps) in zip(panels, seen.items(), strict=True):
            nodes, accepted = steps[: self.most_steps].T
            scale = panel.twinx()
            panel.stairs(nodes, np.arange(len(nodes) + 1) - 0.5, fill=True, color=GREY, alpha=0.55)
            panel.xaxis.get_major_locator().set_params(integer=True)
            panel.axhline(self._budgets[arm], color=BLUE, lw=0.9, ls="--")
            highest = max(self._budgets[arm], int(steps[:, 0].max()), 1)
            panel.set_ylim(0, 1.15 * highest)
            scale.plot(accepted, ".", ms=3, color=ORANGE)
            scale.set_ylim(0, 1.15 * max(int(steps[:, 1].max()), 1))
            scale.set_ylabel("accepted", fontsize=8, color=ORANGE)
            scale.yaxis.get_major_locator().set_params(integer=True)
            panel.set_ylabel("nodes", fontsize=8, color=INK)
            panel.set_title(
                f"{arm} (mean {steps[:, 0].mean():.1f} of {self._budgets[arm]})", fontsize=9, loc="left"
            )
            panel.set_xlim(-0.5, len(nodes) - 0.5)
            bins = np.linspace(0, 1.0001 * highest, min(highest, 32) + 2)
            side.hist(
                steps[:, 0],
                bins=bins,
                orientation="horizontal",
                color=GREY,
                weights=np.full(len(steps), 100 / len(steps)),
            )
            side.axhline(self._budgets[arm], color=BLUE, lw=0.9, ls="--")
            for axes in (panel, side, scale):
                axes.tick_params(labelsize=8, colors=INK)
                axes.spines["top"].set_visible(False)
            side.spines["right"].set_visible(False)
        panels[-1][0].set_xlabel(
            f"step (grey: nodes, dashed: the budget, orange: accepted nodes; the first {self.most_steps})",
            fontsize=8,
        )
        panels[-1][1].set_xlabel("% of all steps", fontsize=8)
        return figure


def _budget(controller: "Controller") -> int | None:
    """Mean nodes a controller aims at; None where it aims at none."""
    return (
        controller.budget if isinstance(controller, ThresholdTracker) and controller.aim == "budget" else None
    )
