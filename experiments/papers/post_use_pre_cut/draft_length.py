"""Draft lengths: the best one in hindsight, and speedups by length (Post-use & Pre-cut, figures 2a and 5, table 3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from experiments.papers.shared import NOT_RUN, DraftingAnalysis, Row, check_rows, label, report_of, table_of
from specexp.bench import clock
from specexp.bench.analysis import Analysis, check_arms, drafting, ended_inside, grafted_rows
from specexp.bench.pictures import (
    BLUE,
    CURVE_COLOURS,
    GREY,
    INK,
    ORANGE,
    draw_speedups,
    legend_below,
    new_figure,
    whole_numbers,
)
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.report import PROMPTS_PER_CATEGORY
from specexp.bench.statistics import Speedup, breakdown, paired_speedup, summarise
from specexp.bench.table import Cell, Column, Table, columns
from specexp.core.contracts import TreeBuilder
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts

ALL = "all"
MOST_CATEGORIES = 8
ON_A_GRID = re.compile(r"(?P<level>.+), (?P<axis>\w+)=(?P<value>\d+(\.\d+)?)")
"""The title of an arm of a grid over one number."""


class Step(NamedTuple):
    """The outcome of a draft, without grafts."""

    accepted: int
    drafted: int
    passes: int
    """Passes of the draft model."""
    ended: bool
    """Whether the output ended inside the draft, without a bonus token."""


class StepCosts(NamedTuple):
    """Costs of a step without its draft passes, and of a draft pass, in steps of plain decoding; their clock."""

    step: float
    draft_pass: float
    source: str

    def of(self, step: Step, length: int | NDArray[np.int64]) -> Any:
        """The cost of the step with another draft length; passes are spread evenly over the drafted tokens."""
        return self.step + length * step.passes / step.drafted * self.draft_pass


def local_optima(steps: Sequence[Step], cost: StepCosts) -> NDArray[np.int64]:
    """``[steps]`` the length that would have been best in each: of j up to the accepted drafts the one with the largest
    ``(j + 1) / cost(j)``, or 0 if that is not above 1.
    """
    found = np.zeros(len(steps), dtype=np.int64)
    for number, step in enumerate(steps):
        lengths = np.arange(1, step.accepted + 1)
        gains = (lengths + 1) / cost.of(step, lengths)
        if step.accepted and gains.max() > 1:
            found[number] = 1 + gains.argmax()
    return found


def cut_short(steps: Sequence[Step]) -> NDArray[np.bool_]:
    """``[steps]`` whether nothing was rejected, so that the optimum may be longer."""
    return np.array([step.accepted == step.drafted or step.ended for step in steps])


def speed_of(steps: Sequence[Step], cost: StepCosts, lengths: int | NDArray[np.int64]) -> float:
    """Tokens over their cost with one length, or with ``[steps]`` lengths; 1 is plain decoding.

    A step that accepted n drafts is n + 1 tokens, which take ceil((n + 1) / (j + 1)) steps with a length of j. That
    holds if a draft does not depend on where it began.
    """
    tokens, spent = 0, 0.0
    for step, length in zip(steps, np.broadcast_to(lengths, len(steps)).tolist(), strict=True):
        own = step.accepted + (not step.ended)
        tokens += own
        spent += -(-own // (length + 1)) * cost.of(step, length) if length else own
    return tokens / spent if spent else 1.0


def global_optimum(steps: Sequence[Step], cost: StepCosts) -> tuple[int, float]:
    """The best fixed length and its speed; 0 where drafting does not pay."""
    longest = max(step.drafted for step in steps)
    speeds = [1.0, *(speed_of(steps, cost, length) for length in range(1, longest + 1))]
    best = int(np.argmax(speeds))
    return best, speeds[best]


Costs = Mapping[str, StepCosts | None]
Points = list[tuple[int, Speedup]]
"""Chain lengths in order, and the speedups over plain decoding."""
Groups = dict[tuple[str, str], Points]
"""Points by group (arms of one grid) and category."""


class OptimalLength(DraftingAnalysis[list[Step]]):
    """The best draft length of each step (:func:`local_optima`), and the best fixed one: the length that decodes the
    same tokens at the least cost (:func:`speed_of`).

    Costs are of this run: the mean step and draft pass of an arm over the mean step of plain decoding. A second table
    has the speed of arms that are chains of a fixed length, by category where it has 3 prompts.
    """

    name: ClassVar[str] = "optimal_length"
    most_steps = 120
    """Steps in the picture."""

    def __init__(self) -> None:
        super().__init__(lambda parts: [])
        self._plain: str | None = None
        self._lengths: dict[str, int] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        super().begin(arms)
        self._plain = next((arm for arm in arms if arm not in self.parts), None)
        lengths = {arm: _length(parts.builder) for arm, parts in self.parts.items()}
        self._lengths = {arm: length for arm, length in lengths.items() if length is not None}

    @override
    def watch(self, arm: str, state: list[Step], outcome: Outcome) -> None:
        grafted = grafted_rows(outcome.tree)
        accepted = int((~grafted[list(outcome.accepted)]).sum())
        drafted = int(outcome.tree.shape.depths[~grafted].max())
        if drafted:
            state.append(Step(accepted, drafted, outcome.draft_passes, ended_inside(outcome)))

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        costs = {arm: self._costs(records, arm) for arm in self.states}
        tables, figures = {self.name: self._table(costs)}, dict[str, Figure]()
        deepest = {arm: max(step.drafted for step in steps) for arm, steps in self.states.items() if steps}
        drawn = max(deepest, key=deepest.__getitem__, default=None)
        if drawn is not None and (cost := costs[drawn]) is not None:
            figures[self.name] = _draw_optima(drawn, self.states[drawn], cost, self.most_steps)
        if groups := self._groups(records):
            name = f"{self.name}_sensitivity"
            used = next(iter(groups.values()))[0][1].clock
            tables[name] = _sensitivity_table(groups, used)
            figures[name] = self._draw_sensitivity(groups, used)
        return Report(tables, figures)

    def _costs(self, records: Sequence[PromptRecord], arm: str) -> StepCosts | None:
        """The arm's costs; None if it or plain decoding decoded nothing."""
        plain = None if self._plain is None else breakdown(records, self._plain)
        own = breakdown(records, arm)
        if plain is None or own is None:
            return None
        drafts = own.shares.get("draft", 0.0) * own.step_seconds if own.draft_passes else 0.0
        draft_pass = drafts / own.draft_passes if own.draft_passes else 0.0
        rest = own.step_seconds - drafts
        return StepCosts(rest / plain.step_seconds, draft_pass / plain.step_seconds, own.clock)

    def _table(self, costs: Costs) -> Table:
        known = [cost for cost in costs.values() if cost is not None]
        word = clock.adjective(known[0].source) if known else ""
        table = table_of(
            "Optimal draft length, step by step in hindsight and of the whole run",
            "arm | steps | drafted:.1 | local mean | median:.0 | 10 %:.0 | 90 %:.0 | local is 0:.1% | cut short:.1%"
            f" | global | {word}speed at global:.2x | {word}speed at local:.2x | draft pass:.3",
            *dict.fromkeys(f"Costs: {cost.source}." for cost in known),
            "Cut short: the whole draft was accepted, or the output ended inside it; the optimum may be longer.",
            "Speed: tokens over cost, in those of plain decoding, replayed from the accepted lengths; at local: as "
            "if every step had known its optimum; grafts are left out. Draft pass: in steps of plain decoding.",
        )
        for arm, steps in self.states.items():
            cells: list[Cell] = [None] * 10
            if not steps:
                continue
            if (cost := costs[arm]) is not None:
                local, (best, speed) = local_optima(steps, cost), global_optimum(steps, cost)
                quantiles = np.quantile(local, [0.5, 0.1, 0.9], method="nearest").tolist()
                shares = [float((local == 0).mean()), float(cut_short(steps).mean())]
                speeds = [best, speed, speed_of(steps, cost, local), cost.draft_pass]
                cells = [float(local.mean()), *quantiles, *shares, *speeds]
            drafted = float(np.mean([step.drafted for step in steps]))
            table.rows.append([arm, len(steps), drafted, *cells])
        return table

    def _groups(self, records: Sequence[PromptRecord]) -> Groups:
        if self._plain is None or not any(record.arm in self._lengths for record in records):
            return {}
        prompts: dict[str, set[str]] = {}
        for record in records:
            prompts.setdefault(record.category, set()).add(record.prompt_id)
        large = [category for category, own in prompts.items() if len(own) >= PROMPTS_PER_CATEGORY]
        large = sorted(large, key=lambda category: -len(prompts[category]))[:MOST_CATEGORIES]
        found: Groups = {}
        for category in [ALL, *(large if len(prompts) > 1 else [])]:
            chosen = [record for record in records if category in (ALL, record.category)]
            for arm, length in self._lengths.items():
                speedup = paired_speedup(chosen, arm, self._plain)
                if speedup.refused is None:
                    group = re.sub(r",? *\w+=\d+$", "", arm) or arm
                    found.setdefault((group, category), []).append((length, speedup))
        return {key: sorted(points, key=lambda point: point[0]) for key, points in found.items()}

    def _draw_sensitivity(self, groups: Groups, used: str) -> Figure:
        """Speed against draft length, by group and by category."""
        names = dict.fromkeys(group for group, _ in groups)
        categories = dict.fromkeys(category for _, category in groups if category != ALL)
        panels = {"all prompts": {name: groups[name, ALL] for name in names if (name, ALL) in groups}}
        for name in names if categories else ():
            lines = {kind: groups[name, kind] for kind in categories if (name, kind) in groups}
            panels[f"{name}, by category"] = lines
        title = clock.titled("Speed against draft length, the best length marked", used)
        width = 4.6 * max(len(panels), 1.3)
        figure, [row] = new_figure(width, 4.2, title, 1, len(panels), sharey=True)
        for axes, (panel, lines) in zip(row, panels.items(), strict=True):
            _draw_lines(axes, lines, intervals=axes is row[0])
            axes.axhline(1, color=INK, lw=0.8, ls=":")
            label(axes, "draft length", title=panel, loc="center", grid="y")
        for axes in row:
            axes.legend(fontsize=7, frameon=False, loc="best")
        label(row[0], y=f"{clock.adjective(used)}speedup over plain decoding")
        return figure


def _length(builder: TreeBuilder | None) -> int | None:
    """Length of a chain without its grafts; None for other trees."""
    while builder is not None and len(builder.inner) == 1:
        [builder] = builder.inner
    chain = builder is not None and builder.shape is not None and builder.max_candidates == 1
    return builder.max_nodes if builder is not None and chain else None


def _sensitivity_table(groups: Groups, used: str) -> Table:
    """The best length of each group and category, and the speed at each length."""
    lengths = sorted({length for points in groups.values() for length, _ in points})
    word = clock.adjective(used)
    heads = columns(f"arms | category | prompts | best length | {word}speedup at it:interval")
    heads += [Column(f"at {length}", 2, "x") for length in lengths]
    note = f"All {word}speedups over plain decoding; geometric mean over prompts, 95 % bootstrap interval."
    table = table_of(clock.titled("Speed against draft length", used), heads, note)
    for (group, category), points in groups.items():
        best, speedup = max(points, key=lambda point: point[1].ratio)
        ratios = {length: one.ratio for length, one in points}
        own: list[Cell] = [ratios.get(length) for length in lengths]
        table.rows.append([group, category, speedup.n, best, speedup, *own])
    return table


def _draw_optima(arm: str, steps: Sequence[Step], cost: StepCosts, most_steps: int) -> Figure:
    """The optimum of every step and of the run; at the side how often each length would have been best."""
    local, (best, speed) = local_optima(steps, cost), global_optimum(steps, cost)
    title = (
        f"The best draft length of every step ({arm})\n{clock.adjective(cost.source)}speed if it were known: "
        f"{speed_of(steps, cost, local):.2f}x plain decoding; of the best fixed length: {speed:.2f}x"
    )
    figure, [[trace, side]] = new_figure(9.5, 3.9, title, 1, 2, width_ratios=(3.4, 1), sharey=True)
    shown, cut = local[:most_steps], cut_short(steps)[:most_steps]
    places = np.arange(1, len(shown) + 1)
    dots: dict[str, Any] = {"ms": 3.6, "color": BLUE}
    trace.vlines(places, best, shown, color=GREY, lw=1.6)
    trace.plot(places[~cut], shown[~cut], "o", label="locally optimal", **dots)
    trace.plot(places[cut], shown[cut], "o", mfc="white", label="at least (cut short)", **dots)
    trace.axhline(best, color=ORANGE, lw=1.6, label=f"globally optimal: {best}")
    trace.set_xlim(0, len(shown) + 1)
    trace.legend(loc="upper center", bbox_to_anchor=(0.5, 1.1), ncols=3, fontsize=8, frameon=False)
    counts = np.bincount(local, minlength=best + 1)
    shares = 100 * counts / counts.sum()
    side.barh(np.arange(len(counts)), shares, height=0.8, color=BLUE)
    side.axhline(best, color=ORANGE, lw=1.6)
    near = shares[max(best - 1, 0) : best + 2].sum()
    label(side, "% of all steps", title=f"{near:.0f} % within 1 of it", loc="center")
    label(trace, f"step (the first {len(shown)} of {len(steps)})", "draft length")
    trace.set_ylim(-0.8, max(len(counts), 2) - 0.2)
    whole_numbers(trace)
    text = f"a draft pass costs {cost.draft_pass:.3f} steps of plain decoding ({cost.source})"
    figure.supxlabel(text, fontsize=8, color=INK)
    return figure


def _draw_lines(axes: Axes, lines: Mapping[str, Points], intervals: bool) -> None:
    colours = CURVE_COLOURS if len(lines) <= len(CURVE_COLOURS) else colormaps["tab10"].colors  # type: ignore[attr-defined]
    for (name, points), colour in zip(lines.items(), cycle(colours), strict=False):
        lengths, ratios = [length for length, _ in points], [speedup.ratio for _, speedup in points]
        axes.plot(lengths, ratios, color=colour, marker="o", ms=3.5, lw=1.4, label=name)
        if intervals:
            low, high = [speedup.low for _, speedup in points], [speedup.high for _, speedup in points]
            axes.fill_between(lengths, low, high, color=colour, alpha=0.15, lw=0)
        place = max(zip(lengths, ratios, strict=True), key=lambda point: point[1])
        axes.plot(*place, "*", color=colour, ms=13, mec="white")
        above: dict[str, Any] = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"{place[0]}", place, fontsize=8, color=colour, **above)


class AblationGrid(Analysis):
    """One row per level, one column per value of the grid that all levels sweep: speedup over ``engine``, and tokens
    per step. A further column has the sensitivity of a level: its slowest value over its fastest.

    Args:
        spread_from: Values below are left out of the sensitivity.
        published: Rows of a paper's table: ``level`` (one of the run's own is drawn in the same colour) and
            ``speedups`` by value of the grid.
    """

    name: ClassVar[str] = "ablation_grid"
    baseline = "engine"

    def __init__(
        self, spread_from: Annotated[float, Field(ge=0)] = 0.0, published: list[Row] | None = None
    ) -> None:
        self.spread_from = spread_from
        rows = check_rows(published, ["speedups"], ["level"])
        self._published: dict[str, Any] = {row["level"]: row.get("speedups", {}) for row in rows}
        self._axis = "value"
        self._levels: dict[str, dict[float, str]] = {}
        self._alone: list[str] = []

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        check_arms(self, "baseline", [self.baseline], arms)
        places = {arm: ON_A_GRID.fullmatch(arm) for arm in drafting(arms)}
        self._levels, self._alone = {}, [arm for arm, place in places.items() if place is None]
        for arm, place in places.items():
            if place is not None:
                self._levels.setdefault(place["level"], {})[float(place["value"])] = arm
        axes = {place["axis"] for place in places.values() if place is not None}
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
        return report_of(self, table, self._draw(levels, used) if levels else None)

    def _table(
        self, records: Sequence[PromptRecord], levels: Mapping[str, Mapping[float, Speedup]], used: str
    ) -> Table:
        values = sorted({value for arms in self._levels.values() for value in arms})
        word = clock.adjective(used)
        any_value, whole = f"any {self._axis}", f" from {self.spread_from:g} on" if self.spread_from else ""
        spread = f"slowest / fastest{whole}"
        titles = ["level", *map(self._place, values), *([any_value] if self._alone else []), spread]
        note = f"{word}geometric mean over prompts of paired seconds per token; in brackets all tokens over all target"
        table = table_of(
            clock.titled(f"Speedup over {self.baseline} by {self._axis} (tokens per step)", used),
            list(map(Column, titles)),
            f"{note[0].upper()}{note[1:]} passes.",
        )
        for level, speedups in levels.items():
            row: dict[str, Cell] = {"level": level}
            row |= {self._place(value): _cell(records, speedup) for value, speedup in speedups.items()}
            given = {value: one.ratio for value, one in speedups.items() if one.refused is None}
            row[spread] = self._spread(given)
            table.add(row)
        for arm in self._alone:
            table.add({"level": arm, any_value: _cell(records, paired_speedup(records, arm, self.baseline))})
        for level, ratios in self._published.items():
            theirs = {self._place(value): f"{ratios[value]:.2f}x" for value in values if value in ratios}
            table.add({"level": f"{level}, published (not run here)", **theirs, spread: self._spread(ratios)})
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
        apart = 0.012 * (values[-1] - values[0])  # so that intervals at the same value are all seen
        for place, (level, speedups) in enumerate(levels.items()):
            given = sorted((value, one) for value, one in speedups.items() if one.refused is None)
            if given:
                aside = apart * (place - (len(levels) - 1) / 2)
                places, known = [value + aside for value, _ in given], [one for _, one in given]
                style: dict[str, Any] = {"color": colours[level], "marker": "o", "capsize": 3, "label": level}
                draw_speedups(panels[0], places, known, **style)
        for level, ratios in self._published.items():
            points = zip(*sorted(ratios.items()), strict=True)
            panels[1].plot(*points, color=colours[level], marker="s", ls="--", label=level)
        for panel, title in zip(panels, ("here", "published (not run here)"), strict=False):
            label(panel, self._axis, title=title, loc="center", grid="y")
            panel.set_xticks(values)
        label(panels[0], y=f"{clock.adjective(used)}speedup over {self.baseline}")
        legend_below(figure, 2, *panels[0].get_legend_handles_labels())
        return figure


def _cell(records: Sequence[PromptRecord], speedup: Speedup) -> str | None:
    summary = summarise(records, speedup.arm)
    if not summary.prompts:
        return None
    ratio = "refused" if speedup.refused else f"{speedup.ratio:.2f}x"
    return f"{ratio} ({summary.tokens_per_step:.2f})"
