"""What a step costs, and what the cost models of DySpec say it should (Xiong et al. 2024, section 4.3, figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from matplotlib.figure import Figure
from typing_extensions import override

from specexp.bench import clock
from specexp.bench.analysis import Analysis, drafting
from specexp.bench.phases import Breakdown, breakdown
from specexp.bench.pictures import INK, PHASE_COLOURS, legend_below, new_figure
from specexp.bench.publish import Report
from specexp.bench.record import MEASURED, PromptRecord
from specexp.bench.table import Cell, Table, columns
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts


@dataclass(frozen=True)
class StepCost:
    """A step of one arm, measured and predicted, in seconds.

    Attributes:
        arm: Name of the arm.
        measured: Where the time went, by the clock of the run.
        tokens_per_step: Accepted drafts and bonus tokens.
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

    def stacks(self) -> list[tuple[str, dict[str, float]]]:
        """Seconds by phase: as clocked, and as the two models have them, each with its name."""
        clocked = {phase: share * self.measured.step_seconds for phase, share in self.measured.shares.items()}
        found = [(MEASURED if self.measured.clock == MEASURED else "modelled", clocked)]
        if self.draft_seconds is not None:
            for name, passes in (("D T_d + T_t", self.depth), ("N T_d + T_t", self.nodes)):
                found.append((name, {"draft": passes * self.draft_seconds, "target": self.target_seconds}))
        return found


class CostModel(Analysis):
    """Measured steps beside ``N * T_d + T_t`` (a pass for every node) and ``D * T_d + T_t`` (one for every layer).

    T_d and T_t are the run's own means of a draft pass and of a target pass. Where a latency profile gives the run's
    seconds, they are called modelled.
    """

    name: ClassVar[str] = "cost_model"

    def __init__(self) -> None:
        self._depths: dict[str, list[int]] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._depths = {arm: [] for arm in drafting(arms)}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        if arm in self._depths:
            self._depths[arm].append(outcome.tree.shape.max_depth)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        costs = [cost for arm in self._depths if (cost := self._cost(records, arm)) is not None]
        return Report({self.name: _table(costs)}, {self.name: _draw(costs)} if costs else {})

    def _cost(self, records: Sequence[PromptRecord], arm: str) -> StepCost | None:
        measured = breakdown(records, arm)
        if measured is None or not self._depths[arm]:
            return None
        own = [record for record in records if record.arm == arm and not record.error and record.seconds]
        draft = measured.shares.get("draft", 0.0) * measured.step_seconds
        return StepCost(
            arm,
            measured,
            sum(len(record.token_ids) for record in own) / measured.steps,
            sum(record.drafted_nodes for record in own) / measured.steps,
            sum(self._depths[arm]) / len(self._depths[arm]),
            draft / measured.draft_passes if measured.draft_passes else None,
            measured.shares.get("target", 0.0) * measured.step_seconds,
        )


def _title(costs: Sequence[StepCost]) -> str:
    clocks = dict.fromkeys(cost.measured.clock for cost in costs) or [MEASURED]
    return f"A step as {' or '.join(clocks)}, and as the cost models have it"


def _table(costs: Sequence[StepCost]) -> Table:
    table = Table(
        _title(costs),
        columns(
            "arm | tokens/step | nodes N:.1 | depth D:.1 | passes:.1 | T_d:.2 ms | T_t:.2 ms | step:.2 ms"
            " | N*T_d+T_t:.2 ms | D*T_d+T_t:.2 ms | per token:.2 ms | by N:.2 ms | by D:.2 ms"
        ),
        notes=[
            "T_d: draft time over draft passes, candidates included; T_t: a target pass. Both of this run.",
            "N*T_d+T_t: a draft pass for every node; D*T_d+T_t: one for every layer; by N, by D: over tokens a step.",
        ],
    )
    for cost in costs:
        steps = [cost.measured.step_seconds, cost.predicted(cost.nodes), cost.predicted(cost.depth)]
        passes = [cost.draft_seconds, cost.target_seconds]
        milliseconds: list[Cell] = [None if one is None else 1000 * one for one in (*passes, *steps)]
        token: list[Cell] = [None if step is None else 1000 * step / cost.tokens_per_step for step in steps]
        facts: list[Cell] = [cost.tokens_per_step, cost.nodes, cost.depth, cost.measured.draft_passes]
        table.rows.append([cost.arm, *facts, *milliseconds, *token])
    return table


def _draw(costs: Sequence[StepCost]) -> Figure:
    figure, [[axes]] = new_figure(8.5, 1.6 + 0.95 * len(costs), _title(costs))
    longest = max(cost.measured.step_seconds for cost in costs)
    limit = 1.45e3 * max([longest, *(cost.predicted(cost.depth) or 0.0 for cost in costs)])
    named: set[str] = set()
    ticks: dict[int, str] = {}
    for number, cost in enumerate(costs):
        for place, (label, seconds) in enumerate(cost.stacks()):
            y, start = 4 * number + place, 0.0
            ticks[y] = label if place else f"{cost.arm}: {label}"
            for phase in (phase for phase in PHASE_COLOURS if phase in seconds):
                new = None if phase in named else phase
                width, pale = 1000 * seconds[phase], 0.5 if place else 1.0
                axes.barh(y, width, 0.8, start, color=PHASE_COLOURS[phase], alpha=pale, label=new)
                named.add(phase)
                start += width
            text = f" {start:.2f} ms, {start / cost.tokens_per_step:.2f} a token"
            if start > limit:
                text = f"{text.strip()}, beyond the axis"
                axes.text(limit, y, text, fontsize=7, color=INK, va="center", ha="right")
            else:
                axes.text(start, y, text, fontsize=7, color=INK, va="center")
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, limit)
    solid = clock.adjective(costs[0].measured.clock).strip() or MEASURED
    axes.set_xlabel(
        f"ms a step (solid: {solid}; pale: predicted from this run's draft pass and target pass)", fontsize=8
    )
    legend_below(figure, len(named))
    return figure
