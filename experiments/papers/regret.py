"""How far controllers stay behind the hindsight optimum, and behind each other, prompt by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from matplotlib.figure import Figure
from typing_extensions import override

from specexp.bench import clock
from specexp.bench.analysis import Analysis, check_arms, drafting
from specexp.bench.figures import draw_speedups
from specexp.bench.pictures import BLUE, INK, name_rows, new_figure, rule
from specexp.bench.publish import Report
from specexp.bench.record import MEASURED, PromptRecord
from specexp.bench.statistics import Speedup, paired_speedup, summarise
from specexp.bench.table import Cell, Column, Table, columns
from specexp.core.parts import Parts


class Regret(Analysis):
    """Regret of an arm on a prompt: log(its seconds per token / those of the oracle's arm). Told is the geometric mean
    of the ratio over prompts, with a paired bootstrap interval; so 1.10x is a tenth more time than the optimum.

    Two arms' regrets differ by log(seconds per token of one / of the other), whoever the oracle is: the second table
    holds these paired ratios, with intervals.

    Args:
        against: Arm the regret is told against; the one with an :class:`~specexp.controllers.Oracle` if None, and
            without one the fastest.
        compare: Arms told against each other in pairs; all if None.
    """

    name: ClassVar[str] = "regret"

    def __init__(self, against: str | None = None, compare: list[str] | None = None) -> None:
        self.against = against
        self.compare = compare
        self._arms: list[str] = []
        self._oracle: str | None = None

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        check_arms(self, "against", [self.against] if self.against else [], arms)
        check_arms(self, "compare", self.compare or [], arms)
        self._arms = list(arms)
        oracles = (name for name, parts in drafting(arms).items() if parts.controller.needs_foresight)
        self._oracle = self.against or next(oracles, None)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        against, kind = self._oracle, self.against or "the oracle"
        if against is None:
            pace = {arm: summarise(records, arm).seconds_per_token for arm in self._arms}
            known = {arm: seconds for arm, seconds in pace.items() if seconds}
            against, kind = min(known, key=known.__getitem__, default=None), "the fastest arm"
        others = [arm for arm in self._arms if against not in (None, arm)]
        regrets = {arm: paired_speedup(records, str(against), arm) for arm in others}
        used = MEASURED if against is None else summarise(records, against).clock
        title = clock.titled(f"Time per token over that of {kind}", used)
        label = against if kind == against else f"{against} ({kind})"
        tables = {self.name: self._table(title, records, regrets, {against: label}, used)}
        compared = [arm for arm in self.compare or self._arms if arm != self._oracle]
        if len(compared) > 1 and records:
            tables[f"{self.name}_pairs"] = _pairs(records, compared, used)
        given = [regret for regret in regrets.values() if regret.refused is None]
        axis = f"{clock.adjective(used)}time per token, {kind} = 1"
        return Report(tables, {self.name: _draw(given, title, axis)} if given else {})

    def _table(
        self,
        title: str,
        records: Sequence[PromptRecord],
        regrets: Mapping[str, Speedup],
        labels: Mapping[str | None, str | None],
        used: str,
    ) -> Table:
        table = Table(
            title,
            columns(
                f"arm | {clock.adjective(used)}regret:interval | prompts:.0 | nodes/step:.1 | draft passes/step:.1"
                " | accepted / drafted:.1%"
            ),
            notes=["Geometric mean over prompts, with a paired bootstrap interval; 1.00x is no regret."],
        )
        if self._oracle is None:
            table.notes.append(
                "No arm has an Oracle, so the fastest arm is what the others are told against."
            )
        for arm in self._arms:
            summary, regret = summarise(records, arm), regrets.get(arm)
            counts = [summary.nodes_per_step, summary.draft_passes_per_step, summary.utilisation]
            table.rows.append([labels.get(arm, arm), regret, None if regret is None else regret.n, *counts])
        return table


def _pairs(records: Sequence[PromptRecord], arms: Sequence[str], used: str) -> Table:
    table = Table(
        clock.titled("Time per token of one arm (row) over another's (column)", used),
        [Column("arm"), *(Column(f"{clock.adjective(used)}over {arm}", interval=True) for arm in arms)],
        notes=[
            "Below 1 the row's arm is faster, so its regret is lower: paired by prompt, 95 % bootstrap interval."
        ],
    )
    for arm in arms:
        row: list[Cell] = [arm]
        row += [None if other == arm else paired_speedup(records, other, arm) for other in arms]
        table.rows.append(row)
    return table


def _draw(regrets: Sequence[Speedup], title: str, axis: str) -> Figure:
    ordered = sorted(regrets, key=lambda regret: regret.ratio)
    figure, [[axes]] = new_figure(8.5, 1.5 + 0.36 * len(ordered), title)
    style = {"color": BLUE, "marker": "o", "ms": 5, "capsize": 3, "ls": "none"}
    draw_speedups(axes, range(len(ordered)), ordered, upright=False, **style)
    for place, regret in enumerate(ordered):
        axes.text(regret.high, place, f"  {regret.ratio:.3f}", va="center", fontsize=8, color=INK)
    axes.axvline(1, color=INK, lw=0.8, ls=":")
    name_rows(axes, [regret.baseline for regret in ordered])
    axes.margins(x=0.12)
    axes.set_xlabel(axis, fontsize=9)
    rule(axes, "x")
    return figure
