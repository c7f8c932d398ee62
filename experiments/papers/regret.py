"""Time per token relative to the hindsight optimum, and between controllers, paired by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from typing_extensions import override

from experiments.papers.oracle import Oracle
from experiments.papers.shared import check_arms, table_of
from specexp.bench import clock
from specexp.bench.record import MEASURED, PromptRecord
from specexp.bench.statistics import paired_speedup, summarize
from specexp.core.parts import Parts
from specexp.report.analysis import Analysis, drafting
from specexp.report.pictures import bars_of
from specexp.report.publish import Report
from specexp.report.table import Cell, Column, Table


class Regret(Analysis):
    """Geometric mean over prompts of an arm's seconds per token over those of the oracle's arm: 1.10x is 10 % more
    time than the optimum. If no arm has an :class:`~experiments.papers.oracle.Oracle`, the fastest arm replaces it.
    A second table has the paired ratios between arms, which do not depend on the oracle.

    Args:
        compare: Arms of the second table; all if None.
    """

    name: ClassVar[str] = "regret"

    def __init__(self, compare: list[str] | None = None) -> None:
        self.compare = compare
        self._arms: list[str] = []
        self._oracle: str | None = None

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        check_arms(self, "compare", self.compare or [], arms)
        self._arms = list(arms)
        oracles = (name for name, parts in drafting(arms).items() if isinstance(parts.controller, Oracle))
        self._oracle = next(oracles, None)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        optimum, kind = self._oracle, "the oracle"
        if optimum is None:
            pace = {arm: summarize(records, arm).seconds_per_token for arm in self._arms}
            known = {arm: seconds for arm, seconds in pace.items() if seconds}
            optimum, kind = min(known, key=known.__getitem__, default=None), "the fastest arm"
        others = [arm for arm in self._arms if optimum not in (None, arm)]  # empty if no arm was measured
        regrets = {arm: paired_speedup(records, str(optimum), arm) for arm in others}
        used = MEASURED if optimum is None else summarize(records, optimum).clock
        title = clock.titled(f"Time per token over that of {kind}", used)
        word = clock.adjective(used)
        table = table_of(
            title,
            f"arm | {word}regret:interval | prompts:.0 | nodes/step:.1 | draft passes/step:.1 | accepted / drafted:.1%",
            "Geometric mean over prompts, with a paired 95 % interval; 1.00x is no regret.",
        )
        if self._oracle is None:
            table.notes.append("No arm has an Oracle, so the others are compared with the fastest arm.")
        for arm in self._arms:
            summary, regret = summarize(records, arm), regrets.get(arm)
            named = f"{arm} ({kind})" if arm == optimum else arm
            counts = [summary.nodes_per_step, summary.draft_passes_per_step, summary.utilisation]
            table.rows.append([named, regret, None if regret is None else regret.n, *counts])
        tables = {self.name: table}
        compared = [arm for arm in self.compare or self._arms if arm != self._oracle]
        if len(compared) > 1 and records:
            tables[f"{self.name}_pairs"] = _pairs(records, compared, used)
        given = [replace(regret, arm=arm) for arm, regret in regrets.items() if regret.refused is None]
        given.sort(key=lambda regret: regret.ratio)
        if not given:
            return Report(tables)
        axis = f"{word}time per token, {kind} = 1"
        return Report(tables, {self.name: bars_of(given, [""] * len(given), title, axis, {})})


def _pairs(records: Sequence[PromptRecord], arms: Sequence[str], used: str) -> Table:
    heads = [Column("arm"), *(Column(f"{clock.adjective(used)}over {arm}", interval=True) for arm in arms)]
    rows: list[list[Cell]] = [
        [arm, *(None if other == arm else paired_speedup(records, other, arm) for other in arms)] for arm in arms
    ]
    note = "Below 1, the row's arm is faster and its regret lower. Paired by prompt, 95 % interval."
    title = clock.titled("Time per token of one arm (row) over another's (column)", used)
    return table_of(title, heads, note, rows=rows)
