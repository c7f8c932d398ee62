"""Draft lengths: the best one in hindsight, and speedups by length (Post-use & Pre-cut, figures 2a and 5, table 3)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from experiments.papers.shared import (
    NOT_RUN,
    DraftingAnalysis,
    Row,
    check_arms,
    check_rows,
    draw_lines,
    grafted_rows,
    label,
    report_of,
    table_of,
    whole_numbers,
)
from experiments.reproduce.resampled import interval, prompt_weights
from specexp.bench import clock
from specexp.bench.observers import ended_inside
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, breakdown, paired_speedup, summarize
from specexp.core.contracts import TreeBuilder
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.report.analysis import Analysis, drafting
from specexp.report.comparison import PROMPTS_PER_CATEGORY
from specexp.report.pictures import BLUE, GRAY, INK, ORANGE, legend_below, new_figure
from specexp.report.publish import Report
from specexp.report.table import Cell, Column, Table, columns
from specexp.tracking.names import PLAIN

ALL = "all"
MOST_CATEGORIES = 8
ON_A_GRID = re.compile(r"(?P<level>.+), (?P<axis>\w+)=(?P<value>\d+(\.\d+)?)")
"""The title of an arm that belongs to a grid over one number."""


class Step(NamedTuple):
    """The outcome of one draft; grafted tokens are not counted."""

    accepted: int
    drafted: int
    passes: int  # passes of the draft model
    ended: bool  # whether the output ended inside the draft, without a bonus token
    sequence: int | str = 0  # key of the prompt's continuation


class StepCosts(NamedTuple):
    """Costs of a step without its draft passes and of one draft pass, in steps of plain decoding; ``source``: clock."""

    step: float
    draft_pass: float
    source: str

    def of(self, step: Step, length: int | NDArray[np.int64]) -> Any:
        """Return the step's cost with another draft length; passes are spread evenly over the drafted tokens."""
        return self.step + length * step.passes / step.drafted * self.draft_pass


def local_optima(steps: Sequence[Step], cost: StepCosts) -> NDArray[np.int64]:
    """Return ``[steps]`` the draft length that would have been best in each step.

    It is the number of accepted drafts j with the largest ``(j + 1) / cost(j)``, or 0 if that is not above 1.
    """
    found = np.zeros(len(steps), dtype=np.int64)
    for number, step in enumerate(steps):
        lengths = np.arange(1, step.accepted + 1)
        gains = (lengths + 1) / cost.of(step, lengths)  # j accepted drafts and the bonus token
        if step.accepted and gains.max() > 1:
            found[number] = 1 + gains.argmax()
    return found


def cut_short(steps: Sequence[Step]) -> NDArray[np.bool_]:
    """Return ``[steps]`` whether no draft token was rejected, so that the optimum may be longer."""
    return np.array([step.accepted == step.drafted or step.ended for step in steps])


def speed_of(steps: Sequence[Step], cost: StepCosts, lengths: int | NDArray[np.int64]) -> float:
    """Return tokens / cost with one draft length, or with ``[steps]`` lengths; plain decoding has 1.

    A step that accepted n drafts gave n + 1 tokens, which take ceil((n + 1) / (j + 1)) steps with a length of j. This
    assumes that drafted tokens do not depend on where the draft begins.
    """
    tokens, spent = np.sum(_replayed(steps, cost, lengths), axis=0).tolist()
    return float(tokens / spent) if spent else 1.0


def _replayed(steps: Sequence[Step], cost: StepCosts, lengths: int | NDArray[np.int64]) -> list[tuple[int, float]]:
    """Return the tokens of each step, and their cost with a draft length (:func:`speed_of`)."""
    found = []
    for step, length in zip(steps, np.broadcast_to(lengths, len(steps)).tolist(), strict=True):
        tokens = step.accepted + (not step.ended)  # with the bonus token
        # a length of 0 is plain decoding: each token takes one step of cost 1
        found.append((tokens, -(-tokens // (length + 1)) * cost.of(step, length) if length else tokens))
    return found


def global_optimum(steps: Sequence[Step], cost: StepCosts) -> tuple[int, float]:
    """Return the best fixed length and its speed; the length is 0 if drafting does not pay."""
    longest = max(step.drafted for step in steps)
    speeds = [1.0, *(speed_of(steps, cost, length) for length in range(1, longest + 1))]
    best = int(np.argmax(speeds))
    return best, speeds[best]


class Intervals(NamedTuple):
    """Figures of an arm on all prompts, each with its 95 % bootstrap interval over the prompts."""

    low_length: list[float]
    """The length that a tenth of the local optima are at or below."""
    high_length: list[float]
    """The length that nine tenths of the local optima are at or below."""
    at_global: list[float]
    """Speed with the best fixed length, which every resample chooses anew."""
    at_local: list[float]


def intervals_of(steps: Sequence[Step], cost: StepCosts) -> Intervals:
    """Return the figures that the table states with intervals."""
    names = list(dict.fromkeys(step.sequence for step in steps))
    place = np.array([names.index(step.sequence) for step in steps])
    weights = prompt_weights(len(names))
    longest = max(step.drafted for step in steps)

    def speeds(lengths: int | NDArray[np.int64]) -> NDArray[np.float64]:
        sums = np.zeros((len(names), 2))
        np.add.at(sums, place, _replayed(steps, cost, lengths))
        tokens, spent = (weights @ sums).T
        found: NDArray[np.float64] = tokens / spent
        return found

    local = local_optima(steps, cost)
    counts = np.zeros((len(names), longest + 1))
    np.add.at(counts, (place, local), 1)
    below = np.cumsum(weights @ counts, axis=1)  # [1 + resamples, length] steps with at most this optimum

    def quantile(share: float) -> NDArray[np.float64]:
        at = np.rint(share * (below[:, -1:] - 1))  # as numpy's method "nearest"
        found: NDArray[np.float64] = (below <= at).sum(axis=1).astype(np.float64)
        return found

    best = np.max([speeds(length) for length in range(longest + 1)], axis=0)
    return Intervals(*map(interval, (quantile(0.1), quantile(0.9), best, speeds(local))))


Costs = Mapping[str, StepCosts | None]
Lines = dict[str, dict[float, Speedup]]
"""Speedups over plain decoding by group of arms (one grid), then by draft length."""


class OptimalLength(DraftingAnalysis[list[Step]]):
    """The best draft length of each step (:func:`local_optima`), and the best fixed one: the length that decodes the
    same tokens at the least cost (:func:`speed_of`).

    Costs are of this run: the mean step and draft pass of an arm over the mean step of plain decoding. A second table
    has the speed of arms that draft chains of a fixed length, for all prompts and each category of at least 3 prompts.
    """

    name: ClassVar[str] = "optimal_length"
    most_steps = 120  # steps in the picture

    def __init__(self) -> None:
        super().__init__()
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
            ended = ended_inside(outcome)
            state.append(Step(accepted, drafted, outcome.draft_passes, ended, outcome.context.sequence))

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        costs = {arm: self._costs(records, arm) for arm in self.states}
        tables, figures = {self.name: self._table(costs)}, dict[str, Figure]()
        deepest = {arm: max(step.drafted for step in steps) for arm, steps in self.states.items() if steps}
        drawn = max(deepest, key=deepest.__getitem__, default=None)
        if drawn is not None and (cost := costs[drawn]) is not None:
            figures[self.name] = _draw_optima(drawn, self.states[drawn], cost, self.most_steps)
        if lines := self._lines(records):
            name = f"{self.name}_sensitivity"
            tables[name], figures[name] = _sensitivity_table(lines), _draw_sensitivity(lines)
        return Report(tables, figures)

    def _costs(self, records: Sequence[PromptRecord], arm: str) -> StepCosts | None:
        """Return the arm's costs; None if it or plain decoding decoded nothing."""
        plain = None if self._plain is None else breakdown(records, self._plain)
        own = breakdown(records, arm)
        if plain is None or own is None:
            return None
        drafts = own.shares.get("draft", 0.0) * own.step_seconds if own.draft_passes else 0.0
        draft_pass = drafts / own.draft_passes if own.draft_passes else 0.0
        rest = own.step_seconds - drafts
        # in steps of plain decoding, so that the costs do not depend on the device
        return StepCosts(rest / plain.step_seconds, draft_pass / plain.step_seconds, own.clock)

    def _table(self, costs: Costs) -> Table:
        known = [cost for cost in costs.values() if cost is not None]
        word = clock.adjective(known[0].source) if known else ""
        table = table_of(
            "Optimal draft length, step by step in hindsight and of the whole run",
            "arm | steps | drafted:.1 | local mean | median:.0 | 10 %:.0 | 10 % low:.0 | 10 % high:.0 | 90 %:.0"
            " | 90 % low:.0 | 90 % high:.0 | local is 0:.1% | cut short:.1% | global"
            + "".join(
                f" | {word}speed at {which}{end}:.2x" for which in ("global", "local") for end in ("", " low", " high")
            )
            + " | draft pass:.3",
            *dict.fromkeys(f"Costs: {cost.source}." for cost in known),
            "Cut short: the whole draft was accepted, or the output ended inside it; the optimum may be longer.",
            "Speed: tokens over cost, relative to plain decoding, replayed from the accepted lengths without grafts. "
            "At local: every step has its optimum. Draft pass: in steps of plain decoding.",
            "Low, high: 95 % bootstrap interval over the prompts, at the costs of the whole run.",
        )
        for arm, steps in self.states.items():
            cells: list[Cell] = [None] * 18
            if not steps:
                continue
            if (cost := costs[arm]) is not None:
                local, found = local_optima(steps, cost), intervals_of(steps, cost)
                middle = [float(local.mean()), float(np.quantile(local, 0.5, method="nearest"))]
                shares = [float((local == 0).mean()), float(cut_short(steps).mean())]
                speeds = [global_optimum(steps, cost)[0], *found.at_global, *found.at_local, cost.draft_pass]
                cells = [*middle, *found.low_length, *found.high_length, *shares, *speeds]
            drafted = float(np.mean([step.drafted for step in steps]))
            table.rows.append([arm, len(steps), drafted, *cells])
        return table

    def _lines(self, records: Sequence[PromptRecord]) -> dict[str, Lines]:
        """Return the speedups over all prompts, then in each large category; empty if no arm drafts chains."""
        prompts: dict[str, set[str]] = defaultdict(set)
        for record in records:
            prompts[record.category].add(record.prompt_id)
        large = [category for category, own in prompts.items() if len(own) >= PROMPTS_PER_CATEGORY]
        large = sorted(large, key=lambda category: -len(prompts[category]))[:MOST_CATEGORIES]
        found: dict[str, Lines] = {}
        for category in [ALL, *(large if len(prompts) > 1 else [])]:
            chosen = [record for record in records if category in (ALL, record.category)]
            for arm, length in self._lengths.items() if self._plain and chosen else ():
                speedup = paired_speedup(chosen, arm, str(self._plain))
                if speedup.refused is None:
                    group = re.sub(r",? *\w+=\d+$", "", arm) or arm
                    found.setdefault(category, {}).setdefault(group, {})[length] = speedup
        return found


def _length(builder: TreeBuilder | None) -> int | None:
    """Return the length of a chain without its grafts; None for other trees."""
    while builder is not None and len(builder.inner) == 1:  # a Graft around the chain
        [builder] = builder.inner
    chain = builder is not None and builder.shape is not None and builder.max_candidates == 1
    return builder.max_nodes if builder is not None and chain else None


def _sensitivity_table(lines: Mapping[str, Lines]) -> Table:
    """Return the best length of each group and category, and the speed at each length."""
    rows = [(group, category, own) for category, groups in lines.items() for group, own in groups.items()]
    lengths = sorted({length for *_, own in rows for length in own})
    used = next(iter(rows[0][2].values())).clock
    word = clock.adjective(used)
    heads = columns(f"arms | category | prompts | best length | {word}speedup at it:interval")
    heads += [Column(f"at {length}", 2, "x") for length in lengths]
    note = f"All {word}speedups over plain decoding; geometric mean over prompts, 95 % interval."
    table = table_of(clock.titled("Speed against draft length", used), heads, note)
    for group, category, own in rows:
        best = max(sorted(own), key=lambda length: own[length].ratio)
        ratios = [own[length].ratio if length in own else None for length in lengths]
        table.rows.append([group, category, own[best].n, best, own[best], *ratios])
    return table


def _draw_sensitivity(lines: Mapping[str, Lines]) -> Figure:
    """Draw speed against draft length, by group and by category."""
    panels: dict[str, Mapping[str, Mapping[float, Speedup]]] = {"all prompts": lines.get(ALL, {})}
    for group in lines.get(ALL, {}) if len(lines) > 1 else ():
        own = {category: groups[group] for category, groups in lines.items() if group in groups}
        panels[f"{group}, by category"] = {category: own[category] for category in own if category != ALL}
    used = next(one.clock for groups in lines.values() for own in groups.values() for one in own.values())
    title = clock.titled("Speed against draft length, the best length marked", used)
    figure, [row] = new_figure(4.6 * max(len(panels), 1.3), 4.2, title, 1, len(panels), sharey=True)
    for axes, (panel, shown) in zip(row, panels.items(), strict=True):
        draw_lines(axes, shown, mark_best=True)
        axes.axhline(1, color=INK, lw=0.8, ls=":")
        label(axes, "draft length", title=panel, loc="center", grid="y")
        axes.legend(fontsize=7, frameon=False, loc="best")
    label(row[0], y=f"{clock.adjective(used)}speedup over plain decoding")
    return figure


def _draw_optima(arm: str, steps: Sequence[Step], cost: StepCosts, most_steps: int) -> Figure:
    """Draw the optimum of every step and of the run, and on the right how often each length would have been best."""
    local, (best, speed) = local_optima(steps, cost), global_optimum(steps, cost)
    title = (
        f"The best draft length of every step ({arm})\n{clock.adjective(cost.source)}speed if it were known: "
        f"{speed_of(steps, cost, local):.2f}x plain decoding; of the best fixed length: {speed:.2f}x"
    )
    figure, [[trace, side]] = new_figure(9.5, 3.9, title, 1, 2, width_ratios=(3.4, 1), sharey=True)
    shown, cut = local[:most_steps], cut_short(steps)[:most_steps]
    places = np.arange(1, len(shown) + 1)
    dots: dict[str, Any] = {"ms": 3.6, "color": BLUE}
    trace.vlines(places, best, shown, color=GRAY, lw=1.6)
    trace.plot(places[~cut], shown[~cut], "o", label="locally optimal", **dots)
    trace.plot(places[cut], shown[cut], "o", mfc="white", label="at least (cut short)", **dots)
    trace.axhline(best, color=ORANGE, lw=1.6, label=f"globally optimal: {best}")
    counts = np.bincount(local, minlength=best + 1)
    side.barh(np.arange(len(counts)), 100 * counts / counts.sum(), height=0.8, color=BLUE)
    side.axhline(best, color=ORANGE, lw=1.6)
    label(side, "% of all steps")
    label(trace, f"step (the first {len(shown)} of {len(steps)})", "draft length")
    trace.set_ylim(-0.8, max(len(counts), 2) - 0.2)
    whole_numbers(trace)
    legend_below(figure, 3)
    return figure


class AblationGrid(Analysis):
    """Speedup over plain decoding and tokens per step, with one row per level and one column per value of the grid that
    all levels sweep. A further column has the sensitivity of a level: its slowest value over its fastest.

    Args:
        spread_from: Smallest value of the grid that counts for the sensitivity.
        published: Rows of a paper's table: ``level`` and ``speedups`` by value of the grid.
    """

    name: ClassVar[str] = "ablation_grid"
    baseline = PLAIN

    def __init__(self, spread_from: Annotated[float, Field(ge=0)] = 0.0, published: list[Row] | None = None) -> None:
        self.spread_from = spread_from
        rows = check_rows(published, ["speedups"], ["level"])
        self._published: dict[str, Any] = {row["level"]: row.get("speedups", {}) for row in rows}
        self._axis = "value"
        self._levels: dict[str, dict[float, str]] = {}
        self._off_grid: list[str] = []

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        check_arms(self, "baseline", [self.baseline], arms)
        places = {arm: ON_A_GRID.fullmatch(arm) for arm in drafting(arms)}
        self._levels, self._off_grid = {}, [arm for arm, place in places.items() if place is None]
        for arm, place in places.items():
            if place is not None:
                self._levels.setdefault(place["level"], {})[float(place["value"])] = arm
        axes = {place["axis"] for place in places.values() if place is not None}
        if len(axes) > 1:
            raise ValueError(f"AblationGrid: all grids must sweep the same argument, got {sorted(axes)}")
        self._axis = next(iter(axes), "value")

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        levels = {
            level: {value: paired_speedup(records, arm, self.baseline) for value, arm in arms.items()}
            for level, arms in self._levels.items()
        }
        used = summarize(records, self.baseline).clock
        table = self._table(records, levels, used)
        return report_of(self, table, self._draw(levels, used) if levels else None)

    def _table(
        self, records: Sequence[PromptRecord], levels: Mapping[str, Mapping[float, Speedup]], used: str
    ) -> Table:
        values = sorted({value for arms in self._levels.values() for value in arms})
        any_value, whole = f"any {self._axis}", f" from {self.spread_from:g} on" if self.spread_from else ""
        spread = f"slowest / fastest{whole}"
        titles = ["level", *map(self._place, values), *([any_value] if self._off_grid else []), spread]
        table = table_of(
            clock.titled(f"Speedup over {self.baseline} by {self._axis} (tokens per step)", used),
            list(map(Column, titles)),
            f"Geometric mean over prompts of paired {clock.adjective(used)}seconds per token; in brackets all tokens "
            "over all target passes.",
        )
        for level, speedups in levels.items():
            row: dict[str, Cell] = {"level": level}
            row |= {self._place(value): _cell(records, speedup) for value, speedup in speedups.items()}
            given = {value: one.ratio for value, one in speedups.items() if one.refused is None}
            table.add({**row, spread: self._spread(given)})
        for arm in self._off_grid:
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
        ours = {
            level: {value: one for value, one in speedups.items() if one.refused is None}
            for level, speedups in levels.items()
        }
        panels = {"here": ours, **({"published (not run here)": self._published} if self._published else {})}
        title = clock.titled(f"Speedup by {self._axis}", used)
        figure, [row] = new_figure(1.5 + 4 * len(panels), 4.2, title, 1, len(panels), sharey=True)
        for panel, (name, lines) in zip(row, panels.items(), strict=True):
            draw_lines(panel, lines)
            label(panel, self._axis, title=name, loc="center", grid="y")
            panel.legend(fontsize=7, frameon=False)
        label(row[0], y=f"{clock.adjective(used)}speedup over {self.baseline}")
        return figure


def _cell(records: Sequence[PromptRecord], speedup: Speedup) -> str | None:
    summary = summarize(records, speedup.arm)
    if not summary.prompts:
        return None
    ratio = "refused" if speedup.refused else f"{speedup.ratio:.2f}x"
    return f"{ratio} ({summary.tokens_per_step:.2f})"
