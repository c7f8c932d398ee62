"""The best draft length of every step, of a whole run, and of its categories (Post-use & Pre-cut, figures 2a and 5)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.publish import Report
from specexp.builders import Chain
from specexp.core.parts import TreeBuilder
from specexp.papers._draft_lengths import Point, draw_optima, draw_sensitivity, sensitivity_table
from specexp.papers._hindsight import Costs, Step, cut_short, global_optimum, local_optima, speed_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Table
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts

_GRID = re.compile(r",? *\w+=\d+$")


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
        self._steps: dict[str, list[Step]] = {}

    def begin(self, arms: "Mapping[str, Parts]") -> None:
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
            self._steps[arm].append(Step(accepted, drafted, outcome.draft_passes, ended))

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """The steps' optima as a table and a picture; the speed of fixed lengths as others, if there are any."""
        costs = {arm: self._costs(records, arm) for arm in self._steps}
        tables = {self.name: self._table(costs)}
        figures: dict[str, Figure] = {}
        drawn = self._drawn()
        if drawn is not None and (cost := costs[drawn]) is not None:
            figures[self.name] = draw_optima(drawn, self._steps[drawn], cost, self.most_steps)
        sensitivity = f"{self.name}_sensitivity"
        groups = self._groups(records)
        if groups:
            tables[sensitivity] = sensitivity_table(groups)
            figures[sensitivity] = draw_sensitivity(groups, self._replayed(costs))
        return Report(tables, figures)

    def _drawn(self) -> str | None:
        if self.arm is not None:
            return self.arm if self._steps.get(self.arm) else None
        deepest = {arm: max(step.drafted for step in steps) for arm, steps in self._steps.items() if steps}
        return max(deepest, key=deepest.__getitem__) if deepest else None

    def _costs(self, records: "Sequence[PromptRecord]", arm: str) -> Costs | None:
        """None where the run does not tell: nothing was decoded."""
        from specexp.bench.phases import breakdown
        from specexp.bench.record import MEASURED

        if self.draft_cost is not None:
            return Costs(1.0, self.draft_cost, f"modelled: a draft pass of {self.draft_cost:g} steps")
        plain = None if self._plain is None else breakdown(records, self._plain)
        own = breakdown(records, arm)
        if plain is None or own is None:
            return None
        drafts = own.shares.get("draft", 0.0) * own.step_seconds
        draft_pass = drafts / own.draft_passes if own.draft_passes else 0.0
        rest = own.step_seconds - (drafts if own.draft_passes else 0.0)
        source = "measured" if own.clock == MEASURED else own.clock
        return Costs(rest / plain.step_seconds, draft_pass / plain.step_seconds, source)

    def _table(self, costs: "Mapping[str, Costs | None]") -> "Table":
        from specexp.bench.table import Cell, Column, Table

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
            row: list[Cell] = [
                arm,
                len(steps),
                float(np.mean([step.drafted for step in steps])),
                *[None] * 10,
            ]
            cost = costs[arm]
            if cost is not None:
                local = local_optima(steps, cost)
                best, speed = global_optimum(steps, cost)
                row[3] = float(local.mean())
                row[4:7] = [int(value) for value in np.quantile(local, [0.5, 0.1, 0.9], method="nearest")]
                row[7:9] = [float((local == 0).mean()), float(cut_short(steps).mean())]
                row[9:] = [best, speed, speed_of(steps, cost, None), cost.draft_pass]
            table.rows.append(row)
        return table

    def _groups(self, records: "Sequence[PromptRecord]") -> dict[tuple[str, str], list[Point]]:
        """Points by group and category, in the order of the lengths; ``all`` is every category."""
        from specexp.bench.report import PROMPTS_PER_CATEGORY
        from specexp.bench.statistics import paired_speedup

        if self._plain is None or not any(record.arm in self._lengths for record in records):
            return {}
        found: dict[tuple[str, str], list[Point]] = {}
        prompts: dict[str, set[str]] = {}
        for record in records:
            prompts.setdefault(record.category, set()).add(record.prompt_id)
        told = [category for category, own in prompts.items() if len(own) >= PROMPTS_PER_CATEGORY]
        told = sorted(told, key=lambda category: -len(prompts[category]))[: self.most_categories]
        for category in ["all", *(told if len(prompts) > 1 else [])]:
            chosen = [record for record in records if category in ("all", record.category)]
            for arm, length in self._lengths.items():
                point = Point(length, paired_speedup(chosen, arm, self._plain))
                if point.speedup.refused is None:
                    found.setdefault((_group(arm), category), []).append(point)
        return {key: sorted(points, key=lambda point: point.length) for key, points in found.items()}

    def _replayed(self, costs: "Mapping[str, Costs | None]") -> tuple[str, list[float]] | None:
        """An arm of the longest chain, and the speed of every shorter length as replayed from its steps."""
        longest = max(self._lengths.values())
        arm = next((arm for arm, own in self._lengths.items() if own == longest and self._steps[arm]), None)
        if arm is None or (cost := costs[arm]) is None:
            return None
        return arm, [speed_of(self._steps[arm], cost, length) for length in range(1, longest + 1)]


def _length(builder: "TreeBuilder | None") -> int | None:
    """Length of a chain, grafts left aside; None of other trees."""
    while builder is not None and not isinstance(builder, Chain):
        builder = getattr(builder, "builder", None)
    return None if builder is None else builder.max_nodes


def _group(arm: str) -> str:
    """Name of the grid an arm is of, or its own."""
    return _GRID.sub("", arm) or arm
