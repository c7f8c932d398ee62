"""The best draft length of every step, of a whole run, and of its categories (Post-use & Pre-cut, figures 2a and 5)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specexp.analyses._base import Analysis, Report, drafting
from specexp.builders import Chain, TreeBuilder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from specexp.evaluation.record import PromptRecord
    from specexp.evaluation.statistics import Speedup
    from specexp.evaluation.table import Table
    from specexp.outcome import Outcome
    from specexp.sequence import Strategy

_GRID = re.compile(r",? *\w+=\d+$")


@dataclass(frozen=True)
class _Costs:
    """What drafting costs an arm, in steps of plain decoding.

    Attributes:
        step: of a step beside its draft passes.
        draft_pass: of a draft pass.
        source: where the figures are from.
    """

    step: float
    draft_pass: float
    source: str

    @property
    def word(self) -> str:
        """What stands before a figure that rests on them: ``"modelled "``, or nothing."""
        return "" if self.source == "measured" else "modelled "


@dataclass(frozen=True)
class _Point:
    """An arm of a fixed length.

    Attributes:
        length: of its chain.
        speedup: over plain decoding.
    """

    length: int
    speedup: "Speedup"


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
        draft_cost: a draft pass in steps of plain decoding, instead of the run's own; a step costs 1 beside it.
        arm: whose steps are drawn; the longest chain's, or the deepest trees', if None.
        most_steps: steps in the picture, the first ones; the table is of all.
        most_categories: categories told apart, those with the most prompts; none of fewer than 3.
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
        self._steps: dict[str, list[tuple[int, int, int, bool]]] = {}

    def begin(self, arms: "Mapping[str, Strategy]") -> None:
        """Forget the steps.

        Raises:
            ValueError: ``arm`` is none that drafts.
        """
        drafts = drafting(arms)
        if self.arm is not None and self.arm not in drafts:
            raise ValueError(f"OptimalLength draws {self.arm!r}, but the drafting arms are {list(drafts)}")
        self._plain = next((arm for arm in arms if arm not in drafts), None)
        lengths = {arm: _length(strategy.builder) for arm, strategy in drafts.items()}
        self._lengths = {arm: length for arm, length in lengths.items() if length is not None}
        self._steps = {arm: [] for arm in drafts}

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Note how many drafts were accepted, of how many, and what they took."""
        if arm not in self._steps:
            return
        tree = outcome.tree
        accepted = len(outcome.accepted)
        drafted = tree.shape.max_depth
        if tree.grafted is not None:
            accepted -= int(tree.grafted[list(outcome.accepted)].sum())
            drafted = int(tree.shape.depths[~tree.grafted].max())
        ended = len(outcome.new_token_ids) == len(outcome.accepted)  # without a bonus token
        if drafted:
            self._steps[arm].append((accepted, drafted, outcome.draft_passes, ended))

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """The steps' optima as a table and a picture; the speed of fixed lengths as others, if there are any."""
        costs = {arm: self._costs(records, arm) for arm in self._steps}
        tables = {self.name: self._table(costs)}
        figures: dict[str, Figure] = {}
        drawn = self._drawn()
        if drawn is not None and (cost := costs[drawn]) is not None:
            figures[self.name] = self._draw(drawn, cost)
        sensitivity = f"{self.name}_sensitivity"
        groups = self._groups(records)
        if groups:
            tables[sensitivity] = _sensitivity_table(groups)
            figures[sensitivity] = self._draw_sensitivity(groups, costs)
        return Report(tables, figures)

    def _drawn(self) -> str | None:
        if self.arm is not None:
            return self.arm if self._steps.get(self.arm) else None
        deepest = {arm: max(step[1] for step in steps) for arm, steps in self._steps.items() if steps}
        return max(deepest, key=deepest.__getitem__) if deepest else None

    def _costs(self, records: "Sequence[PromptRecord]", arm: str) -> _Costs | None:
        """None where the run does not tell: nothing was decoded."""
        from specexp.evaluation.phases import breakdown
        from specexp.evaluation.record import MEASURED

        if self.draft_cost is not None:
            return _Costs(1.0, self.draft_cost, f"modelled: a draft pass of {self.draft_cost:g} steps")
        plain = None if self._plain is None else breakdown(records, self._plain)
        own = breakdown(records, arm)
        if plain is None or own is None:
            return None
        drafts = own.shares.get("draft", 0.0) * own.step_seconds
        draft_pass = drafts / own.draft_passes if own.draft_passes else 0.0
        rest = own.step_seconds - (drafts if own.draft_passes else 0.0)
        source = "measured" if own.clock == MEASURED else own.clock
        return _Costs(rest / plain.step_seconds, draft_pass / plain.step_seconds, source)

    def _table(self, costs: "Mapping[str, _Costs | None]") -> "Table":
        from specexp.evaluation.table import Cell, Column, Table

        word = next((cost.word for cost in costs.values() if cost is not None), "")
        table = Table(
            "Optimal draft length, step by step in hindsight and of the whole run",
            [
                Column("arm"),
                Column("steps"),
                Column("drafted", 1),
                Column("local mean", 2),
                Column("median", 0),
                Column("10 %", 0),
                Column("90 %", 0),
                Column("local is 0", 1, "%"),
                Column("cut short", 1, "%"),
                Column("global"),
                Column(f"{word}speed at global", 2, "x"),
                Column(f"{word}speed at local", 2, "x"),
                Column("draft pass", 3),
            ],
            notes=[
                *dict.fromkeys(f"Costs: {cost.source}." for cost in costs.values() if cost is not None),
                "Cut short: the whole draft was accepted, or the output ended inside it; the optimum may be longer.",
                "Speed: tokens over cost, in those of plain decoding, replayed from the accepted lengths; at local: as "
                "if every step had known its optimum; grafts are left out. Draft pass: in steps of plain decoding.",
            ],
        )
        for arm, steps in self._steps.items():
            if not steps:
                continue
            row: list[Cell] = [arm, len(steps), float(np.mean([step[1] for step in steps])), *[None] * 10]
            cost = costs[arm]
            if cost is not None:
                local = _local(steps, cost)
                best, speed = _global(steps, cost)
                row[3] = float(local.mean())
                row[4:7] = [int(value) for value in np.quantile(local, [0.5, 0.1, 0.9], method="nearest")]
                row[7:9] = [float((local == 0).mean()), float(_cut_short(steps).mean())]
                row[9:] = [best, speed, _speed(steps, cost, None), cost.draft_pass]
            table.rows.append(row)
        return table

    def _draw(self, arm: str, cost: _Costs) -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.evaluation.figures import BLUE, GREY, INK, ORANGE

        steps = self._steps[arm]
        local, cut = _local(steps, cost), _cut_short(steps)
        best, speed = _global(steps, cost)
        figure = Figure(figsize=(9.5, 3.9), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(
            f"The best draft length of every step ({arm})\n"
            f"{cost.word}speed if it were known: {_speed(steps, cost, None):.2f}x plain decoding; "
            f"of the best fixed length: {speed:.2f}x",
            fontsize=11,
            color=INK,
        )
        trace, side = figure.subplots(1, 2, width_ratios=(3.4, 1), sharey=True)
        shown = local[: self.most_steps]
        places = np.arange(1, len(shown) + 1)
        trace.vlines(places, best, shown, color=GREY, lw=1.6)
        open_ended = cut[: self.most_steps]
        trace.plot(places[~open_ended], shown[~open_ended], "o", ms=3.6, color=BLUE, label="locally optimal")
        trace.plot(
            places[open_ended],
            shown[open_ended],
            "o",
            ms=3.6,
            mfc="white",
            color=BLUE,
            label="at least (cut short)",
        )
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
        figure.supxlabel(_cost_text(cost), fontsize=8, color=INK)
        for axes in (trace, side):
            axes.set_ylim(-0.8, max(len(counts), 2) - 0.2)
            axes.yaxis.get_major_locator().set_params(integer=True)
            axes.tick_params(labelsize=8, colors=INK)
            axes.spines[["top", "right"]].set_visible(False)
        return figure

    def _groups(self, records: "Sequence[PromptRecord]") -> dict[tuple[str, str], list[_Point]]:
        """Points by group and category, in the order of the lengths; ``all`` is every category."""
        from specexp.evaluation.report import PROMPTS_PER_CATEGORY
        from specexp.evaluation.statistics import paired_speedup

        if self._plain is None or not any(record.arm in self._lengths for record in records):
            return {}
        found: dict[tuple[str, str], list[_Point]] = {}
        prompts: dict[str, set[str]] = {}
        for record in records:
            prompts.setdefault(record.category, set()).add(record.prompt_id)
        told = [category for category, own in prompts.items() if len(own) >= PROMPTS_PER_CATEGORY]
        told = sorted(told, key=lambda category: -len(prompts[category]))[: self.most_categories]
        for category in ["all", *(told if len(prompts) > 1 else [])]:
            chosen = [record for record in records if category in ("all", record.category)]
            for arm, length in self._lengths.items():
                point = _Point(length, paired_speedup(chosen, arm, self._plain))
                if point.speedup.refused is None:
                    found.setdefault((_group(arm), category), []).append(point)
        return {key: sorted(points, key=lambda point: point.length) for key, points in found.items()}

    def _draw_sensitivity(
        self,
        groups: "Mapping[tuple[str, str], Sequence[_Point]]",
        costs: "Mapping[str, _Costs | None]",
    ) -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.evaluation import clock
        from specexp.evaluation.figures import GREY, INK

        shown = dict.fromkeys(category for _, category in groups if category != "all")
        names = dict.fromkeys(group for group, _ in groups)
        panels: list[tuple[str, dict[str, Sequence[_Point]]]] = [
            ("all prompts", {name: groups[name, "all"] for name in names if (name, "all") in groups})
        ]
        for name in names if shown else ():
            lines = {kind: groups[name, kind] for kind in shown if (name, kind) in groups}
            panels.append((f"{name}, by category", lines))
        figure = Figure(figsize=(4.6 * max(len(panels), 1.3), 4.2), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        used = next(point.speedup.clock for points in groups.values() for point in points)
        figure.suptitle(
            clock.title("Speed against draft length, the best length marked", used), fontsize=11, color=INK
        )
        row = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (title, lines) in zip(row, panels, strict=True):
            _draw_lines(axes, lines, intervals=title == "all prompts")
            axes.set_title(title, fontsize=9, color=INK)
            axes.set_xlabel("draft length", fontsize=9)
            axes.axhline(1, color=INK, lw=0.8, ls=":")
            axes.tick_params(labelsize=8, colors=INK)
            axes.grid(axis="y", color="#e3e8ec", lw=0.7)
            axes.spines[["top", "right"]].set_visible(False)
        longest = max(self._lengths, key=self._lengths.__getitem__)
        replayable = [
            arm for arm in self._lengths if self._steps[arm] and self._lengths[arm] == self._lengths[longest]
        ]
        if replayable and (cost := costs[replayable[0]]) is not None:
            lengths = range(1, self._lengths[longest] + 1)
            speeds = [_speed(self._steps[replayable[0]], cost, length) for length in lengths]
            row[0].plot(
                lengths,
                speeds,
                color=GREY,
                ls="--",
                lw=1.2,
                label=f"replayed from {replayable[0]}, all tokens",
            )
        for axes in row:
            axes.legend(fontsize=7, frameon=False, loc="best")
        row[0].set_ylabel(f"{clock.word(used)}speedup over plain decoding", fontsize=9)
        return figure


def _length(builder: "TreeBuilder | None") -> int | None:
    """Length of a chain, grafts left aside; None of other trees."""
    while builder is not None and not isinstance(builder, Chain):
        builder = getattr(builder, "builder", None)
    return None if builder is None else builder.max_nodes


def _group(arm: str) -> str:
    """Name of the grid an arm is of, or its own."""
    return _GRID.sub("", arm) or arm


def _local(steps: Sequence[tuple[int, int, int, bool]], cost: _Costs) -> NDArray[np.int64]:
    """``[steps]`` the length that would have been best in each."""
    found = np.zeros(len(steps), dtype=np.int64)
    for number, (accepted, drafted, passes, _) in enumerate(steps):
        lengths = np.arange(1, accepted + 1)
        gains = (lengths + 1) / (cost.step + lengths * passes / drafted * cost.draft_pass)
        if accepted and gains.max() > 1:
            found[number] = 1 + gains.argmax()
    return found


def _cut_short(steps: Sequence[tuple[int, int, int, bool]]) -> NDArray[np.bool_]:
    """``[steps]`` whether nothing was rejected, so that the optimum may be longer."""
    return np.array([accepted == drafted or ended for accepted, drafted, _, ended in steps])


def _speed(steps: Sequence[tuple[int, int, int, bool]], cost: _Costs, length: int | None) -> float:
    """Tokens over their cost with a fixed length, or with every step's optimum (None); 1 is plain decoding."""
    tokens, spent = 0, 0.0
    local = _local(steps, cost) if length is None else None
    for number, (accepted, drafted, passes, ended) in enumerate(steps):
        brought = accepted + (not ended)
        tokens += brought
        own = length if local is None else int(local[number])
        if own:
            times = -(-brought // (own + 1))
            spent += times * (cost.step + own * passes / drafted * cost.draft_pass)
        else:
            spent += brought
    return tokens / spent if spent else 1.0


def _global(steps: Sequence[tuple[int, int, int, bool]], cost: _Costs) -> tuple[int, float]:
    """The best fixed length and its speed; 0 where drafting does not pay."""
    speeds = [1.0, *(_speed(steps, cost, length) for length in range(1, max(step[1] for step in steps) + 1))]
    best = int(np.argmax(speeds))
    return best, speeds[best]


def _cost_text(cost: _Costs) -> str:
    return f"a draft pass costs {cost.draft_pass:.3f} steps of plain decoding ({cost.source})"


def _sensitivity_table(groups: "Mapping[tuple[str, str], Sequence[_Point]]") -> "Table":
    from specexp.evaluation import clock
    from specexp.evaluation.table import Cell, Column, Table

    used = next(point.speedup.clock for points in groups.values() for point in points)
    lengths = sorted({point.length for points in groups.values() for point in points})
    table = Table(
        clock.title("Speed against draft length", used),
        [
            Column("arms"),
            Column("category"),
            Column("prompts"),
            Column("best length"),
            Column(f"{clock.word(used)}speedup at it", interval=True),
            *(Column(f"at {length}", 2, "x") for length in lengths),
        ],
        notes=[
            f"All {clock.word(used)}speedups over plain decoding; geometric mean over prompts, 95 % bootstrap interval."
        ],
    )
    for (group, category), points in groups.items():
        best = max(points, key=lambda point: point.speedup.ratio)
        ratios = {point.length: point.speedup.ratio for point in points}
        told: list[Cell] = [ratios.get(length) for length in lengths]
        table.rows.append([group, category, best.speedup.n, best.length, best.speedup, *told])
    return table


def _draw_lines(axes: "Axes", lines: "Mapping[str, Sequence[_Point]]", intervals: bool) -> None:
    from matplotlib import colormaps

    from specexp.evaluation.figures import CURVE_COLOURS

    colours = CURVE_COLOURS if len(lines) <= len(CURVE_COLOURS) else colormaps["tab10"].colors  # type: ignore[attr-defined]
    for number, (name, points) in enumerate(lines.items()):
        colour = colours[number % len(colours)]
        lengths = [point.length for point in points]
        ratios = [point.speedup.ratio for point in points]
        axes.plot(lengths, ratios, color=colour, marker="o", ms=3.5, lw=1.4, label=name)
        if intervals:
            axes.fill_between(
                lengths,
                [point.speedup.low for point in points],
                [point.speedup.high for point in points],
                color=colour,
                alpha=0.15,
                lw=0,
            )
        best = int(np.argmax(ratios))
        axes.plot(lengths[best], ratios[best], "*", color=colour, ms=13, mec="white")
        axes.annotate(
            f"{lengths[best]}",
            (lengths[best], ratios[best]),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=colour,
        )
