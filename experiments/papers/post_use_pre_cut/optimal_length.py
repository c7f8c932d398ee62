"""The best draft length of every step, of a whole run, and of its categories (Post-use & Pre-cut, figures 2a and 5)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field
from typing_extensions import override

from experiments.papers.post_use_pre_cut.hindsight import (
    Step,
    StepCosts,
    cut_short,
    global_optimum,
    local_optima,
    speed_of,
)
from specexp.bench import clock
from specexp.bench.analysis import Analysis, check_arms, drafting, ended_inside, grafted_rows
from specexp.bench.phases import breakdown
from specexp.bench.pictures import BLUE, CURVE_COLOURS, GREY, INK, ORANGE, new_figure, rule, whole_numbers
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.report import PROMPTS_PER_CATEGORY
from specexp.bench.statistics import Speedup, paired_speedup
from specexp.bench.table import Cell, Column, Table, columns
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.tree_builder import TreeBuilder

ALL = "all"
_GRID = re.compile(r",? *\w+=\d+$")


class LengthPoint(NamedTuple):
    """An arm of a fixed length: the length of its chain, and its speedup over plain decoding."""

    length: int
    speedup: Speedup


Groups = dict[tuple[str, str], list[LengthPoint]]
"""Points by group and category, in the order of the lengths; :data:`ALL` is every category."""


class OptimalLength(Analysis):
    """How long a draft should have been, step by step, and how long it should always be.

    Locally optimal is the length that brings most tokens for its cost in hindsight: of a step that accepted n of its
    drafts, the j up to n with the largest (j + 1) / cost(j), against 1 of a step that drafts nothing. Where the whole
    draft was accepted, or the output ended inside it, a longer one might be better still.

    Globally optimal is the one length that decodes the same tokens at the least cost. It is replayed: a step that
    accepted n drafts of a long chain is n + 1 tokens, which take ceil((n + 1) / (j + 1)) steps with a length of j. That
    is what happens if a draft does not depend on where it began, as the best tokens of a draft model.

    Costs are of this run: the mean step and draft pass of an arm over the mean step of plain decoding; modelled where
    the run's seconds are. A draft in which phrases rode takes fewer passes than it has tokens: its passes are shared
    out evenly.

    Beside it stands the speed of the arms that are chains of a fixed length, in groups: arms of one grid.

    Args:
        draft_cost: A draft pass in steps of plain decoding, instead of the run's own; a step costs 1 beside it.
        arm: Arm whose steps are drawn; the longest chain's, or the deepest trees', if None.
        most_steps: Steps in the picture, the first ones; the table is of all.
        most_categories: Categories told apart, those with the most prompts; none of fewer than 3.
    """

    name: ClassVar[str] = "optimal_length"

    def __init__(
        self,
        draft_cost: Annotated[float, Field(ge=0)] | None = None,
        arm: str | None = None,
        most_steps: Annotated[int, Field(ge=1)] = 120,
        most_categories: Annotated[int, Field(ge=1)] = 8,
    ) -> None:
        self.draft_cost = draft_cost
        self.arm = arm
        self.most_steps = most_steps
        self.most_categories = most_categories
        self._plain: str | None = None
        self._lengths: dict[str, int] = {}
        self._steps: dict[str, list[Step]] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        drafts = drafting(arms)
        check_arms(self, "arm", [] if self.arm is None else [self.arm], drafts)
        self._plain = next((arm for arm in arms if arm not in drafts), None)
        lengths = {arm: _length(parts.builder) for arm, parts in drafts.items()}
        self._lengths = {arm: length for arm, length in lengths.items() if length is not None}
        self._steps = {arm: [] for arm in drafts}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        if arm not in self._steps:
            return
        grafted = grafted_rows(outcome.tree)
        accepted = int((~grafted[list(outcome.accepted)]).sum())
        drafted = int(outcome.tree.shape.depths[~grafted].max())
        if drafted:
            self._steps[arm].append(Step(accepted, drafted, outcome.draft_passes, ended_inside(outcome)))

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        costs = {arm: self._costs(records, arm) for arm in self._steps}
        tables = {self.name: self._table(costs)}
        figures: dict[str, Figure] = {}
        deepest = {arm: max(step.drafted for step in steps) for arm, steps in self._steps.items() if steps}
        drawn = self.arm or max(deepest, key=deepest.__getitem__, default=None)
        if drawn is not None and drawn in deepest and (cost := costs[drawn]) is not None:
            figures[self.name] = _draw_optima(drawn, self._steps[drawn], cost, self.most_steps)
        groups = self._groups(records)
        if groups:
            name = f"{self.name}_sensitivity"
            used = next(point.speedup.clock for points in groups.values() for point in points)
            tables[name] = _sensitivity_table(groups, used)
            figures[name] = self._draw_sensitivity(groups, used, costs)
        return Report(tables, figures)

    def _costs(self, records: Sequence[PromptRecord], arm: str) -> StepCosts | None:
        """None where the run does not tell: nothing was decoded."""
        if self.draft_cost is not None:
            return StepCosts(1.0, self.draft_cost, f"modelled: a draft pass of {self.draft_cost:g} steps")
        plain = None if self._plain is None else breakdown(records, self._plain)
        own = breakdown(records, arm)
        if plain is None or own is None:
            return None
        drafts = own.shares.get("draft", 0.0) * own.step_seconds if own.draft_passes else 0.0
        draft_pass = drafts / own.draft_passes if own.draft_passes else 0.0
        rest = own.step_seconds - drafts
        return StepCosts(rest / plain.step_seconds, draft_pass / plain.step_seconds, own.clock)

    def _table(self, costs: Mapping[str, StepCosts | None]) -> Table:
        known = [cost for cost in costs.values() if cost is not None]
        word = known[0].word if known else ""
        table = Table(
            "Optimal draft length, step by step in hindsight and of the whole run",
            columns(
                "arm | steps | drafted:.1 | local mean | median:.0 | 10 %:.0 | 90 %:.0 | local is 0:.1% | cut short:.1%"
                f" | global | {word}speed at global:.2x | {word}speed at local:.2x | draft pass:.3"
            ),
            notes=[
                *dict.fromkeys(f"Costs: {cost.source}." for cost in known),
                "Cut short: the whole draft was accepted, or the output ended inside it; the optimum may be longer.",
                "Speed: tokens over cost, in those of plain decoding, replayed from the accepted lengths; at local: as "
                "if every step had known its optimum; grafts are left out. Draft pass: in steps of plain decoding.",
            ],
        )
        for arm, steps in self._steps.items():
            if not steps:
                continue
            cells: list[Cell] = [None] * 10
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
        told = [category for category, own in prompts.items() if len(own) >= PROMPTS_PER_CATEGORY]
        told = sorted(told, key=lambda category: -len(prompts[category]))[: self.most_categories]
        found: Groups = {}
        for category in [ALL, *(told if len(prompts) > 1 else [])]:
            chosen = [record for record in records if category in (ALL, record.category)]
            for arm, length in self._lengths.items():
                point = LengthPoint(length, paired_speedup(chosen, arm, self._plain))
                if point.speedup.refused is None:
                    found.setdefault((_group(arm), category), []).append(point)
        return {key: sorted(points, key=lambda point: point.length) for key, points in found.items()}

    def _draw_sensitivity(self, groups: Groups, used: str, costs: Mapping[str, StepCosts | None]) -> Figure:
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
            axes.set_title(panel, fontsize=9, color=INK)
            axes.set_xlabel("draft length", fontsize=9)
            axes.axhline(1, color=INK, lw=0.8, ls=":")
            rule(axes)
        self._draw_replayed(row[0], costs)
        for axes in row:
            axes.legend(fontsize=7, frameon=False, loc="best")
        row[0].set_ylabel(f"{clock.adjective(used)}speedup over plain decoding", fontsize=9)
        return figure

    def _draw_replayed(self, axes: Axes, costs: Mapping[str, StepCosts | None]) -> None:
        """The speed of every length up to the longest chain's, as replayed from its steps."""
        longest = max(self._lengths.values())
        arm = next((arm for arm, own in self._lengths.items() if own == longest and self._steps[arm]), None)
        if arm is not None and (cost := costs[arm]) is not None:
            lengths = range(1, longest + 1)
            speeds = [speed_of(self._steps[arm], cost, length) for length in lengths]
            label = f"replayed from {arm}, all tokens"
            axes.plot(lengths, speeds, color=GREY, ls="--", lw=1.2, label=label)


def _length(builder: TreeBuilder | None) -> int | None:
    """Length of a chain, grafts left aside; None of other trees."""
    while builder is not None and len(builder.inner) == 1:
        [builder] = builder.inner
    chain = builder is not None and builder.fixed_shape and builder.max_candidates == 1
    return builder.max_nodes if builder is not None and chain else None


def _group(arm: str) -> str:
    """Name of the grid an arm is of, or its own."""
    return _GRID.sub("", arm) or arm


def _sensitivity_table(groups: Groups, used: str) -> Table:
    """The best length of every group and category, and the speed at each length."""
    lengths = sorted({point.length for points in groups.values() for point in points})
    word = clock.adjective(used)
    table = Table(
        clock.titled("Speed against draft length", used),
        [
            *columns(f"arms | category | prompts | best length | {word}speedup at it:interval"),
            *(Column(f"at {length}", 2, "x") for length in lengths),
        ],
        notes=[
            f"All {word}speedups over plain decoding; geometric mean over prompts, 95 % bootstrap interval."
        ],
    )
    for (group, category), points in groups.items():
        best = max(points, key=lambda point: point.speedup.ratio)
        ratios = {length: speedup.ratio for length, speedup in points}
        told: list[Cell] = [ratios.get(length) for length in lengths]
        table.rows.append([group, category, best.speedup.n, best.length, best.speedup, *told])
    return table


def _draw_optima(arm: str, steps: Sequence[Step], cost: StepCosts, most_steps: int) -> Figure:
    """The optimum of every step and of the run; beside it how often each length would have been best."""
    local, (best, speed) = local_optima(steps, cost), global_optimum(steps, cost)
    title = (
        f"The best draft length of every step ({arm})\n"
        f"{cost.word}speed if it were known: {speed_of(steps, cost, local):.2f}x plain decoding; "
        f"of the best fixed length: {speed:.2f}x"
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
    trace.set_xlabel(f"step (the first {len(shown)} of {len(steps)})", fontsize=9)
    trace.set_ylabel("draft length", fontsize=9)
    trace.legend(loc="upper center", bbox_to_anchor=(0.5, 1.1), ncols=3, fontsize=8, frameon=False)
    counts = np.bincount(local, minlength=best + 1)
    shares = 100 * counts / counts.sum()
    side.barh(np.arange(len(counts)), shares, height=0.8, color=BLUE)
    side.axhline(best, color=ORANGE, lw=1.6)
    near = shares[max(best - 1, 0) : best + 2].sum()
    side.set_title(f"{near:.0f} % within 1 of it", fontsize=9, color=INK)
    side.set_xlabel("% of all steps", fontsize=9)
    told = f"a draft pass costs {cost.draft_pass:.3f} steps of plain decoding ({cost.source})"
    figure.supxlabel(told, fontsize=8, color=INK)
    trace.set_ylim(-0.8, max(len(counts), 2) - 0.2)
    whole_numbers(trace)
    return figure


def _draw_lines(axes: Axes, lines: Mapping[str, Sequence[LengthPoint]], intervals: bool) -> None:
    colours = CURVE_COLOURS if len(lines) <= len(CURVE_COLOURS) else colormaps["tab10"].colors  # type: ignore[attr-defined]
    for number, (name, points) in enumerate(lines.items()):
        colour = colours[number % len(colours)]
        lengths = [point.length for point in points]
        ratios = [point.speedup.ratio for point in points]
        axes.plot(lengths, ratios, color=colour, marker="o", ms=3.5, lw=1.4, label=name)
        if intervals:
            low, high = ([getattr(point.speedup, end) for point in points] for end in ("low", "high"))
            axes.fill_between(lengths, low, high, color=colour, alpha=0.15, lw=0)
        best = int(np.argmax(ratios))
        place = (lengths[best], ratios[best])
        axes.plot(*place, "*", color=colour, ms=13, mec="white")
        above: dict[str, Any] = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"{lengths[best]}", place, fontsize=8, color=colour, **above)
