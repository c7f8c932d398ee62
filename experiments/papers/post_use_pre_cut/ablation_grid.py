"""Speedups by level and draft length, a paper's beside them (Post-use & Pre-cut, table 3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Annotated, Any, ClassVar

from matplotlib.figure import Figure
from pydantic import Field
from typing_extensions import override

from experiments.papers.published import NOT_RUN, Row, check_rows
from specexp.bench import clock
from specexp.bench.analysis import Analysis, check_arms, drafting
from specexp.bench.figures import draw_speedups
from specexp.bench.pictures import CURVE_COLOURS, legend_below, new_figure, rule
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, paired_speedup, summarise
from specexp.bench.table import Cell, Column, Table
from specexp.core.parts import Parts

ON_A_GRID = re.compile(r"(?P<level>.+), (?P<axis>\w+)=(?P<value>\d+(\.\d+)?)")
"""How the arm of a grid over one number is called."""


class AblationGrid(Analysis):
    """One row a level, one column a value of the grid that all levels sweep: speedup, and tokens per step.

    Beside them how sensitive a level is (its slowest value over its fastest), and its best value over the best of the
    first level. Both pick the fastest on the prompts they are told of, which flatters them a little, all alike.

    Args:
        baseline: Title of the arm that speedups are over.
        spread_from: Values below are left out of the sensitivity; all count if None.
        published: Rows of a paper's table to show beside it: ``level`` (what it adds; as one of the run's own it is
            drawn in the same colour) and ``speedups`` by value of the grid.
    """

    name: ClassVar[str] = "ablation_grid"

    def __init__(
        self,
        baseline: str = "engine",
        spread_from: Annotated[float, Field(ge=0)] | None = None,
        published: list[Row] | None = None,
    ) -> None:
        self.baseline = baseline
        self.spread_from = spread_from or 0.0
        rows = check_rows(published, ["speedups"], texts=["level"])
        self._published: dict[str, Any] = {str(row["level"]): row.get("speedups", {}) for row in rows}
        self._axis = "value"
        self._levels: dict[str, dict[float, str]] = {}
        self._alone: list[str] = []

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        check_arms(self, "baseline", [self.baseline], arms)
        self._levels, self._alone = {}, []
        axes: set[str] = set()
        for arm in drafting(arms):
            place = ON_A_GRID.fullmatch(arm)
            if place is None:
                self._alone.append(arm)
                continue
            axes.add(place["axis"])
            self._levels.setdefault(place["level"], {})[float(place["value"])] = arm
        if len(axes) > 1:
            raise ValueError(f"AblationGrid needs grids over one argument, but they sweep {sorted(axes)}")
        self._axis = next(iter(axes), "value")

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        levels = {
            level: {value: paired_speedup(records, arm, self.baseline) for value, arm in arms.items()}
            for level, arms in self._levels.items()
        }
        used = summarise(records, self.baseline).clock
        table = self._table(records, levels, used)
        return Report({self.name: table}, {self.name: self._draw(levels, used)} if levels else {})

    def _table(
        self, records: Sequence[PromptRecord], levels: Mapping[str, Mapping[float, Speedup]], used: str
    ) -> Table:
        values = sorted({value for arms in self._levels.values() for value in arms})
        first = next(iter(levels), None)
        any_value, whole = f"any {self._axis}", f" from {self.spread_from:g} on" if self.spread_from else ""
        spread = f"slowest / fastest{whole}"
        gain = f"{clock.adjective(used)}best over the best of {first or 'the first level'}"
        titles = ["level", *map(self._place, values), *([any_value] if self._alone else []), spread]
        note = (
            f"{clock.adjective(used)}geometric mean over prompts of paired seconds per token; in brackets all tokens "
            "over all target passes."
        )
        table = Table(
            clock.titled(f"Speedup over {self.baseline} by {self._axis} (tokens per step)", used),
            [*map(Column, titles), Column(gain, interval=True)],
            notes=[note[0].upper() + note[1:]],
        )
        for level, speedups in levels.items():
            row: dict[str, Cell] = {"level": level}
            row |= {self._place(value): _cell(records, speedup) for value, speedup in speedups.items()}
            given = {value: one for value, one in speedups.items() if one.refused is None}
            row[spread] = self._spread({value: one.ratio for value, one in given.items()})
            best, other = _fastest(speedups), _fastest(levels[first or level])
            if level != first and best is not None and other is not None:
                row[gain] = paired_speedup(records, best.arm, other.arm)
            table.add(row)
        for arm in self._alone:
            table.add({"level": arm, any_value: _cell(records, paired_speedup(records, arm, self.baseline))})
        for level, ratios in self._published.items():
            told = {self._place(value): f"{ratios[value]:.2f}x" for value in values if value in ratios}
            table.add({"level": f"{level}, published (not run here)", **told, spread: self._spread(ratios)})
        if self._published:
            table.notes.append(NOT_RUN)
        return table

    def _place(self, value: float) -> str:
        return f"{self._axis}={value:g}"

    def _spread(self, ratios: Mapping[float, float]) -> float | None:
        counted = [ratio for value, ratio in ratios.items() if value >= self.spread_from]
        return min(counted) / max(counted) if len(counted) > 1 else None

    def _draw(self, levels: Mapping[str, Mapping[float, Speedup]], used: str) -> Figure:
        colours = dict(zip([*levels, *self._published], cycle(CURVE_COLOURS), strict=False))
        colours |= dict(zip(levels, cycle(CURVE_COLOURS), strict=False))
        width, number = (9.5, 2) if self._published else (5.5, 1)
        title = clock.titled(f"Speedup by {self._axis}", used)
        figure, [panels] = new_figure(width, 4.2, title, 1, number, sharey=True)
        values = sorted({value for one in levels.values() for value in one})
        apart = 0.012 * (values[-1] - values[0])  # so that intervals of several levels can be told apart
        for place, (level, speedups) in enumerate(levels.items()):
            given = sorted((value, one) for value, one in speedups.items() if one.refused is None)
            if given:
                aside = apart * (place - (len(levels) - 1) / 2)
                places, known = [value + aside for value, _ in given], [one for _, one in given]
                style: dict[str, Any] = {"color": colours[level], "marker": "o", "capsize": 3, "label": level}
                draw_speedups(panels[0], places, known, **style)
        panels[0].set_title("here", fontsize=9)
        panels[0].set_ylabel(f"{clock.adjective(used)}speedup over {self.baseline}", fontsize=9)
        for level, ratios in self._published.items():
            points = zip(*sorted(ratios.items()), strict=True)
            panels[1].plot(*points, color=colours[level], marker="s", ls="--", label=level)
            panels[1].set_title("published (not run here)", fontsize=9)
        for panel in panels:
            panel.set_xlabel(self._axis, fontsize=9)
            panel.set_xticks(values)
            rule(panel)
        legend_below(figure, 2, *panels[0].get_legend_handles_labels())
        return figure


def _cell(records: Sequence[PromptRecord], speedup: Speedup) -> str | None:
    summary = summarise(records, speedup.arm)
    if not summary.prompts:
        return None
    ratio = "refused" if speedup.refused else f"{speedup.ratio:.2f}x"
    return f"{ratio} ({summary.tokens_per_step:.2f})"


def _fastest(speedups: Mapping[float, Speedup]) -> Speedup | None:
    given = [one for one in speedups.values() if one.refused is None]
    return max(given, key=lambda one: one.ratio, default=None)
