"""Helpers of the papers' analyses: a state per drafting arm, tables, labeled axes, lines, and published rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from typing_extensions import override

from specexp.base.messages import did_you_mean
from specexp.bench.statistics import Speedup
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.tree import TokenTree
from specexp.report.analysis import Analysis, drafting
from specexp.report.pictures import INK, rule
from specexp.report.publish import Report
from specexp.report.table import Cell, Column, Table, columns
from specexp.tracking.names import PLAIN

State = TypeVar("State")
Row = dict[str, str | float | dict[float, float]]
"""A row of a paper's table: strings, numbers, or mappings from a grid's value to a number."""
MOST_BANDS = 4  # with more lines, the bands of their intervals overlap too much and are not drawn
NOT_RUN = "Not run here: figures as published by the paper, on its models and device."


def check_arms(analysis: Analysis, argument: str, given: Iterable[str], arms: Iterable[str]) -> None:
    """Raise ValueError if an ``argument`` of an analysis names an arm that does not exist."""
    known = list(arms)
    if unknown := [name for name in given if name not in known]:
        kind = type(analysis).__name__
        raise ValueError(f"{kind}: {argument} must name one of the arms {known}, got {unknown[0]!r}")


def whole_numbers(axes: Axes) -> None:
    """Restrict the ticks of the y axis to whole numbers."""
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


class MultiSequenceAnalysis(Analysis, ABC):
    """An analysis of time lines and records of prompts that several sequences decode; it observes no single steps."""

    watches_steps: ClassVar[bool] = False

    def __init__(self, baseline: str = PLAIN) -> None:
        self.baseline = baseline

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        check_arms(self, "baseline", [self.baseline], arms)


class DraftingAnalysis(Analysis, Generic[State]):
    """Keeps a state for each arm that drafts, and updates it at every step."""

    def __init__(self) -> None:
        self.parts: dict[str, Parts] = {}
        self.states: dict[str, State] = {}

    def new_state(self, parts: Parts) -> State:
        """Return the state of an arm before its first step, by default an empty list."""
        return cast("State", [])

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self.parts = drafting(arms)
        self.states = {arm: self.new_state(parts) for arm, parts in self.parts.items()}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        if arm in self.states:
            self.watch(arm, self.states[arm], outcome)

    @abstractmethod
    def watch(self, arm: str, state: State, outcome: Outcome) -> None:
        """Update the state of an arm by one step."""


def visited(outcome: Outcome) -> tuple[int, ...]:
    """Return the rows after which the verifier chose a token: the root and the accepted nodes."""
    rows = (0, *outcome.accepted)
    return rows[: len(outcome.new_token_ids)]  # an output may end inside the drafted path


def grafted_rows(tree: TokenTree) -> NDArray[np.bool_]:
    """``[n + 1]`` which rows belong to phrases grafted onto the drafted tree."""
    return np.zeros(tree.tokens.size, dtype=np.bool_) if tree.grafted is None else tree.grafted


def report_of(analysis: Analysis, table: Table, figure: Figure | None = None) -> Report:
    """Return a report with a table and a picture under the analysis' name."""
    return Report({analysis.name: table}, {} if figure is None else {analysis.name: figure})


def table_of(title: str, heads: str | Sequence[Column], *notes: str, rows: Iterable[Sequence[Cell]] = ()) -> Table:
    """Return a table; a string of headings is parsed by :func:`~specexp.report.table.columns`."""
    found = columns(heads) if isinstance(heads, str) else heads
    return Table(title, found, [list(row) for row in rows], list(notes))


def label(
    axes: Axes,
    x: str = "",
    y: str = "",
    title: str = "",
    *,
    loc: Literal["left", "center"] = "left",
    grid: Literal["x", "y", "both"] | None = None,
    low: float | None = None,
    high: float | None = None,
) -> None:
    """Label the axes and title the panel; ``grid`` draws grid lines, ``low`` and ``high`` limit the y axis."""
    if x:
        axes.set_xlabel(x, fontsize=9)
    if y:
        axes.set_ylabel(y, fontsize=9)
    if title:
        axes.set_title(title, fontsize=9, loc=loc, color=INK)
    if grid is not None:
        rule(axes, grid)
    if low is not None or high is not None:
        axes.set_ylim(low, high)


def correlation_interval(correlation: float | None, count: int) -> list[float | None]:
    """Return Fisher's 95 % interval of a correlation; None where it has none."""
    if correlation is None or abs(correlation) == 1 or count < 4:
        return [None, None]
    return [float(np.tanh(np.arctanh(correlation) + z / (count - 3) ** 0.5)) for z in (-1.96, 1.96)]


def draw_lines(axes: Axes, lines: Mapping[str, Mapping[float, Speedup | float]], *, mark_best: bool = False) -> None:
    """Draw lines from x to y values; a speedup's interval becomes a band, and ``mark_best`` stars the highest point."""
    for name, points in lines.items():
        places = sorted(points)
        drawn = [points[place] for place in places]
        ratios = [one.ratio if isinstance(one, Speedup) else one for one in drawn]
        [line] = axes.plot(places, ratios, marker="o", ms=3.5, lw=1.4, label=name)
        own = [one for one in drawn if isinstance(one, Speedup)]
        if own and len(lines) <= MOST_BANDS:
            low, high = [one.low for one in own], [one.high for one in own]
            axes.fill_between(places, low, high, color=line.get_color(), alpha=0.15, lw=0)
        if mark_best and ratios:
            best = max(ratios)
            axes.plot(places[ratios.index(best)], best, "*", color=line.get_color(), ms=13, mec="white")


def check_rows(
    rows: Sequence[Mapping[str, Any]] | None, figures: Iterable[str], texts: Sequence[str] = ("method",)
) -> list[Mapping[str, Any]]:
    """Check rows of a paper's table: each must have all ``texts``, and may have ``figures``, numbers or grids above 0.

    Raises:
        ValueError: A text is missing, a key is unknown, or a figure is not above 0.
    """
    known = [*texts, *figures]
    for number, row in enumerate(rows or ()):
        for key in row:
            if key not in known:
                raise ValueError(f"published.{number}: unknown key {key!r}{did_you_mean(key, known)}")
        for key in texts:
            if not isinstance(row.get(key), str):
                raise ValueError(f"published.{number}.{key} must be a text, got {row.get(key)!r}")
        for key in row.keys() - set(texts):
            for one in row[key].values() if isinstance(row[key], Mapping) else [row[key]]:
                # bool is an int in Python
                if isinstance(one, bool) or not isinstance(one, int | float) or one <= 0:
                    raise ValueError(f"published.{number}.{key} must be a number above 0, got {one!r}")
    return list(rows or ())


def label_of(row: Mapping[str, Any]) -> str:
    """Return the name of a published row in a table or picture."""
    return f"{row['method']} (not run here)"


def add_rows(table: Table, rows: Sequence[Mapping[str, Any]], headings: Mapping[str, str]) -> None:
    """Add published rows and a note below ours; ``headings`` maps keys to columns, and other keys are left out."""
    speedups = {column.title for column in table.columns if column.interval}  # a paper states no interval
    for row in rows:
        known = {headings[key]: value for key, value in row.items() if key in headings}
        for heading in known.keys() & speedups:
            known[heading] = f"{known[heading]:.2f}x published"
        table.add({"arm": label_of(row), **known})
    if rows and NOT_RUN not in table.notes:
        table.notes.append(NOT_RUN)
