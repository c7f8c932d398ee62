"""What a step costs, and what the cost models of DySpec say it should (Xiong et al. 2024, section 4.3, figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.publish import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.phases import Breakdown
    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Table
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts


@dataclass(frozen=True)
class Cost:
    """A step of one arm, measured and predicted, in seconds.

    Attributes:
        arm: name.
        measured: where the time went, by the clock of the run.
        tokens_per_step: accepted drafts and bonus.
        nodes: N, mean nodes of a tree.
        depth: D, mean depth of a tree.
        draft_seconds: T_d, of one draft pass, what is made of its answer included; None without passes.
        target_seconds: T_t, of one target pass.
    """

    arm: str
    measured: Breakdown
    tokens_per_step: float
    nodes: float
    depth: float
    draft_seconds: float | None
    target_seconds: float

    def predicted(self, passes: float) -> float | None:
        """Seconds of a step with this many draft passes: ``passes * T_d + T_t``."""
        return None if self.draft_seconds is None else passes * self.draft_seconds + self.target_seconds


class CostModel(Analysis):
    """Measured steps beside ``N * T_d + T_t`` (a pass for every node) and ``D * T_d + T_t`` (one for every layer).

    T_d and T_t are the run's own means of a draft pass and of a target pass. Where a latency profile gives the run's
    seconds, they are called modelled.
    """

    name: ClassVar[str] = "cost_model"

    def __init__(self) -> None:
        self._depths: dict[str, list[int]] = {}

    def begin(self, arms: Mapping[str, Parts]) -> None:
        """Forget the depths."""
        self._depths = {arm: [] for arm in drafting(arms)}

    def observe(self, arm: str, outcome: Outcome) -> None:
        """Note the depth; times and counts are in the records."""
        if arm in self._depths:
            self._depths[arm].append(outcome.tree.shape.max_depth)

    def report(self, records: Sequence[PromptRecord]) -> Report:
        """A table, and a picture if any arm drafts."""
        costs = [cost for arm in self._depths if (cost := self._cost(records, arm)) is not None]
        return Report({self.name: _table(costs)}, {self.name: _draw(costs)} if costs else {})

    def _cost(self, records: Sequence[PromptRecord], arm: str) -> Cost | None:
        from specexp.bench.phases import breakdown

        measured = breakdown(records, arm)
        if measured is None or not self._depths[arm]:
            return None
        own = [record for record in records if record.arm == arm and not record.error and record.seconds]
        draft = measured.shares.get("draft", 0.0) * measured.step_seconds
        return Cost(
            arm,
            measured,
            sum(len(record.token_ids) for record in own) / measured.steps,
            sum(record.drafted_nodes for record in own) / measured.steps,
            sum(self._depths[arm]) / len(self._depths[arm]),
            draft / measured.draft_passes if measured.draft_passes else None,
            measured.shares.get("target", 0.0) * measured.step_seconds,
        )


def _clock_word(cost: Cost) -> str:
    from specexp.bench.record import MEASURED

    return MEASURED if cost.measured.clock == MEASURED else "modelled"


def _title(costs: Sequence[Cost]) -> str:
    clocks = dict.fromkeys(cost.measured.clock for cost in costs) or ["measured"]
    return f"A step as {' or '.join(clocks)}, and as the cost models have it"


def _table(costs: Sequence[Cost]) -> Table:
    from specexp.bench.table import Cell, Column, Table

    table = Table(
        _title(costs),
        [
            Column("arm"),
            Column("tokens/step", 2),
            Column("nodes N", 1),
            Column("depth D", 1),
            Column("passes", 1),
            Column("T_d", 2, " ms"),
            Column("T_t", 2, " ms"),
            Column("step", 2, " ms"),
            Column("N*T_d+T_t", 2, " ms"),
            Column("D*T_d+T_t", 2, " ms"),
            Column("per token", 2, " ms"),
            Column("by N", 2, " ms"),
            Column("by D", 2, " ms"),
        ],
        notes=[
            "T_d: draft time over draft passes, candidates included; T_t: a target pass. Both of this run.",
            "N*T_d+T_t: a draft pass for every node; D*T_d+T_t: one for every layer; by N, by D: over tokens a step.",
        ],
    )
    for cost in costs:
        steps = [cost.measured.step_seconds, cost.predicted(cost.nodes), cost.predicted(cost.depth)]
        shown: list[Cell] = [None if step is None else 1000 * step for step in steps]
        token: list[Cell] = [None if step is None else 1000 * step / cost.tokens_per_step for step in steps]
        pass_ms = None if cost.draft_seconds is None else 1000 * cost.draft_seconds
        facts: list[Cell] = [cost.tokens_per_step, cost.nodes, cost.depth, cost.measured.draft_passes]
        table.rows.append([cost.arm, *facts, pass_ms, 1000 * cost.target_seconds, *shown, *token])
    return table


def _draw(costs: Sequence[Cost]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from specexp.bench.pictures import INK, PHASE_COLOURS

    figure = Figure(figsize=(8.5, 1.6 + 0.95 * len(costs)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(costs), fontsize=11, color=INK)
    axes = figure.subplots()
    longest = max(cost.measured.step_seconds for cost in costs)
    limit = 1.45e3 * max([longest, *(cost.predicted(cost.depth) or 0.0 for cost in costs)])
    named: set[str] = set()
    ticks, labels = [], []
    for number, cost in enumerate(costs):
        own = _clock_word(cost)
        rows: list[tuple[str, float, float | None]] = [(own, cost.measured.draft_passes, None)]
        if cost.draft_seconds is not None:
            rows += [
                ("D T_d + T_t", cost.depth, cost.draft_seconds),
                ("N T_d + T_t", cost.nodes, cost.draft_seconds),
            ]
        for place, (label, passes, seconds) in enumerate(rows):
            y = 4 * number + place
            if seconds is None:
                parts = {
                    phase: share * cost.measured.step_seconds for phase, share in cost.measured.shares.items()
                }
            else:
                parts = {"draft": passes * seconds, "target": cost.target_seconds}
            start = 0.0
            for phase in (phase for phase in PHASE_COLOURS if phase in parts):
                width = 1000 * parts[phase]
                axes.barh(
                    y,
                    width,
                    left=start,
                    color=PHASE_COLOURS[phase],
                    height=0.8,
                    alpha=1.0 if seconds is None else 0.5,
                    label=None if phase in named else phase,
                )
                named.add(phase)
                start += width
            text = f" {start:.2f} ms, {start / cost.tokens_per_step:.2f} a token"
            if start > limit:
                axes.text(
                    limit,
                    y,
                    f"{text.strip()}, beyond the axis",
                    fontsize=7,
                    color=INK,
                    va="center",
                    ha="right",
                )
            else:
                axes.text(start, y, text, fontsize=7, color=INK, va="center")
            ticks.append(y)
            labels.append(f"{cost.arm}: {label}" if not place else label)
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, limit)
    axes.set_xlabel(
        f"ms a step (solid: {_clock_word(costs[0])}; pale: predicted from this run's draft pass and target pass)",
        fontsize=8,
    )
    axes.tick_params(labelsize=8, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(named) or 1, fontsize=8, frameon=False)
    return figure
