"""Speedups by level and draft length, a paper's beside them (Post-use & Pre-cut, table 3)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.publish import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.statistics import Speedup
    from specexp.bench.table import Cell, Column
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts

ON_A_GRID = re.compile(r"(?P<level>.+), (?P<axis>\w+)=(?P<value>\d+(\.\d+)?)")
"""How the arm of a grid over one number is called."""


@dataclass(frozen=True)
class PublishedLevel:
    """A row of a paper's table, not run here.

    Attributes:
        level: what it adds; as one of the run's own it is drawn in the same colour.
        speedups: by draft length.
    """

    level: str
    speedups: dict[float, Annotated[float, Field(gt=0)]]


class AblationGrid(Analysis):
    """One row a level, one column a value of the grid that all levels sweep: speedup, and tokens per step.

    Beside them how sensitive a level is (its slowest value over its fastest), and its best value over the best of the
    first level. Both pick the fastest on the prompts they are told of, which flatters them a little, all alike.

    Args:
        baseline: title of the arm that speedups are over.
        spread_from: values below are left out of the sensitivity; all count if None.
        published: rows of a paper's table.
    """

    name: ClassVar[str] = "ablation_grid"

    def __init__(
        self,
        baseline: str = "engine",
        spread_from: Annotated[float, Field(ge=0)] | None = None,
        published: list[PublishedLevel] | None = None,
    ) -> None:
        self.baseline = baseline
        self.spread_from = spread_from or 0.0
        self.published = published or []
        self._axis = "value"
        self._levels: dict[str, dict[float, str]] = {}
        self._alone: list[str] = []

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Sort the arms into levels and values by their titles.

        Raises:
            ValueError: the baseline is no arm, or two grids sweep different things.
        """
        if self.baseline not in arms:
            raise ValueError(f"AblationGrid compares with {self.baseline!r}, but the arms are {list(arms)}")
        self._levels, self._alone = {}, []
        axes: list[str] = []
        for arm in drafting(arms):
            place = ON_A_GRID.fullmatch(arm)
            if place is None:
                self._alone.append(arm)
                continue
            axes.append(place["axis"])
            self._levels.setdefault(place["level"], {})[float(place["value"])] = arm
        if len(set(axes)) > 1:
            raise ValueError(
                f"AblationGrid needs grids over one argument, but they sweep {sorted(set(axes))}"
            )
        self._axis = axes[0] if axes else "value"

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Nothing to see that the records do not hold."""

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """A table, and a picture if any arm is on a grid."""
        from specexp.bench import clock
        from specexp.bench.statistics import paired_speedup, summarise
        from specexp.bench.table import Cell, Column, Table

        levels = {
            level: {value: paired_speedup(records, arm, self.baseline) for value, arm in arms.items()}
            for level, arms in self._levels.items()
        }
        values = sorted({value for arms in self._levels.values() for value in arms})
        used = summarise(records, self.baseline).clock
        first = next(iter(levels), None)
        table = Table(
            clock.title(f"Speedup over {self.baseline} by {self._axis} (tokens per step)", used),
            [
                Column("level"),
                *(Column(f"{self._axis}={value:g}") for value in values),
                *([Column(f"any {self._axis}")] if self._alone else []),
                *self._summaries(clock.word(used), first),
            ],
        )
        for level, speedups in levels.items():
            row: list[Cell] = [level]
            for value in values:
                arm = self._levels[level].get(value)
                row.append(None if arm is None else _cell(records, arm, speedups[value]))
            best = _fastest(speedups)
            over = None
            if best is not None and first is not None and level != first:
                other = _fastest(levels[first])
                if other is not None:
                    arms = self._levels[level][best], self._levels[first][other]
                    over = paired_speedup(records, *arms)
            given = {value: one.ratio for value, one in speedups.items() if one.refused is None}
            table.rows.append([*row, *([None] if self._alone else []), self._spread(given), over])
        for arm in self._alone:
            speedup = paired_speedup(records, arm, self.baseline)
            table.rows.append([arm, *([None] * len(values)), _cell(records, arm, speedup), None, None])
        for item in self.published:
            told = [f"{item.speedups[v]:.2f}x" if v in item.speedups else None for v in values]
            spread = self._spread(item.speedups)
            extra = [None] if self._alone else []
            table.rows.append([f"{item.level}, published (not run here)", *told, *extra, spread, None])
        table.notes = self._notes(clock.word(used))
        return Report({self.name: table}, {self.name: self._draw(levels, used)} if levels else {})

    def _summaries(self, modelled: str, first: str | None) -> "list[Column]":
        from specexp.bench.table import Column

        whole = f" from {self.spread_from:g} on" if self.spread_from else ""
        return [
            Column(f"slowest / fastest{whole}"),
            Column(f"{modelled}best over the best of {first or 'the first level'}", interval=True),
        ]

    def _notes(self, modelled: str) -> list[str]:
        notes = [
            f"{modelled}geometric mean over prompts of paired seconds per token; in brackets all tokens over all "
            "target passes."
        ]
        if self.published:
            notes.append("Not run here: figures as published by the paper, on its models and device.")
        return [note[0].upper() + note[1:] for note in notes]

    def _spread(self, ratios: "Mapping[float, float]") -> "Cell":
        counted = [ratio for value, ratio in ratios.items() if value >= self.spread_from]
        return min(counted) / max(counted) if len(counted) > 1 else None

    def _draw(self, levels: "Mapping[str, Mapping[float, Speedup]]", used: str) -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.bench import clock
        from specexp.bench.pictures import CURVE_COLOURS, INK

        colours = dict(
            zip([*levels, *(row.level for row in self.published)], cycle(CURVE_COLOURS), strict=False)
        )
        colours |= dict(zip(levels, cycle(CURVE_COLOURS), strict=False))
        figure = Figure(figsize=(9.5 if self.published else 5.5, 4.2), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(clock.title(f"Speedup by {self._axis}", used), fontsize=11, color=INK)
        panels = figure.subplots(1, 2 if self.published else 1, squeeze=False, sharey=True)[0]
        values = sorted({value for one in levels.values() for value in one})
        apart = 0.012 * (values[-1] - values[0])  # so that intervals of several levels can be told apart
        for place, (level, speedups) in enumerate(levels.items()):
            given = sorted((value, one) for value, one in speedups.items() if one.refused is None)
            errors = [[one.ratio - one.low for _, one in given], [one.high - one.ratio for _, one in given]]
            panels[0].errorbar(
                [value + apart * (place - (len(levels) - 1) / 2) for value, _ in given],
                [one.ratio for _, one in given],
                yerr=errors,
                color=colours[level],
                marker="o",
                capsize=3,
                label=level,
            )
        panels[0].set_title("here", fontsize=9)
        panels[0].set_ylabel(f"{clock.word(used)}speedup over {self.baseline}", fontsize=9)
        for row in self.published:
            points = sorted(row.speedups.items())
            panels[1].plot(
                *zip(*points, strict=True), color=colours[row.level], marker="s", ls="--", label=row.level
            )
        if self.published:
            panels[1].set_title("published (not run here)", fontsize=9)
        for panel in panels:
            panel.set_xlabel(self._axis, fontsize=9)
            panel.grid(axis="y", color="#e3e8ec", lw=0.7)
            panel.set_axisbelow(True)
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(labelsize=9, colors=INK)
            panel.set_xticks(values)
        figure.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=2,
            fontsize=8,
            frameon=False,
        )
        return figure


def _cell(records: "Sequence[PromptRecord]", arm: str, speedup: "Speedup") -> str | None:
    from specexp.bench.statistics import summarise

    summary = summarise(records, arm)
    if not summary.prompts:
        return None
    ratio = "refused" if speedup.refused else f"{speedup.ratio:.2f}x"
    return f"{ratio} ({summary.tokens_per_step:.2f})"


def _fastest(speedups: "Mapping[float, Speedup]") -> float | None:
    given = {value: one.ratio for value, one in speedups.items() if one.refused is None}
    return max(given, key=given.__getitem__) if given else None
