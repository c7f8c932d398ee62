"""Speedups of trees of thought by task and execution strategy (SEED, Tables 1 and 3)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from specexp.bench.analysis import MultiSequenceAnalysis, check_baseline
from specexp.bench.publish import Report
from specexp.papers._groups import (
    answered,
    busy_share,
    end_to_end,
    over,
    overlapped_share,
    plain_name,
    tokens_per_second,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Cell, Table
    from specexp.core.parts import Parts

Positive = Annotated[float, Field(gt=0)]
DIM = "#71808d"


@dataclass(frozen=True)
class PublishedReasoning:
    """A row of a paper's table, not run here.

    Attributes:
        task: as the task calls itself, e.g. ``GSM8K``.
        method: e.g. ``SEED, (2,2,1)``.
        speedup: over plain decoding.
        depth: of the tree of thoughts; that of the task if None.
    """

    task: str
    method: str
    speedup: Positive
    depth: Annotated[int, Field(ge=1)] | None = None


class ReasoningTable(MultiSequenceAnalysis):
    """Every arm on every task: how much faster than plain decoding, end to end and in decoding alone, why, and whether
    it still says the same.

    End to end is the whole search for an answer: prompts, prefills, decoding, evaluations read. Decoding leaves the
    prefills and the search out. Both are seconds per token, paired item by item, with a 95 % bootstrap interval.

    Args:
        baseline: arm that speedups are over.
        published: rows of a paper's table to show beside it.
    """

    name: ClassVar[str] = "reasoning_table"

    def __init__(self, baseline: str = "engine", published: list[PublishedReasoning] | None = None) -> None:
        self.baseline = baseline
        self.published = published or []

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Nothing is kept.

        Raises:
            ValueError: ``baseline`` is none of the arms.
        """
        check_baseline(self, self.baseline, arms)

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """Speed, what it comes from, and answers, with a picture of the speed."""
        from specexp.bench.statistics import arm_names, categories

        records = list(records)
        known = categories(records)
        tasks = [*known, *dict.fromkeys(row.task for row in self.published if row.task not in known)]
        groups = {task: [record for record in records if record.category == task] for task in tasks}
        arms = arm_names(records)
        tables = {
            self.name: self._speed(groups, arms),
            f"{self.name}_drafts": self._drafts(groups, arms),
            f"{self.name}_answers": self._answers(groups, arms),
        }
        drawn = any(arm != self.baseline for arm in arms)
        return Report(tables, {self.name: self._draw(groups, arms)} if drawn else {})

    def _speed(self, groups: "Mapping[str, Sequence[PromptRecord]]", arms: Sequence[str]) -> "Table":
        from specexp.bench.statistics import paired_speedup, summarise
        from specexp.bench.table import Column, Table

        table = Table(
            f"Speedup over {self.baseline} by task",
            [
                Column("task"),
                Column("tree depth"),
                Column("arm"),
                Column("end to end", interval=True),
                Column("decoding", interval=True),
                Column("tokens/s", 0),
                Column("tokens/step"),
                Column("target busy", 1, "%"),
                Column("equal outputs"),
            ],
            notes=[
                "Seconds per token, paired item by item, geometric mean, 95 % bootstrap interval. End to end: the "
                "whole search, prefills included; decoding: without prefills and search. Tokens/s are end to end.",
                "Target busy: share of the whole time in which the target runs a pass or a prefill.",
            ],
        )
        for task, records in groups.items():
            for arm in arms:
                good = answered(records, arm)
                if not good:
                    continue
                plain = arm == self.baseline
                row: list[Cell] = [task, depth_of(task), arm]
                row += [None if plain else end_to_end(records, arm, self.baseline)]
                row += [None if plain else paired_speedup(records, arm, self.baseline)]
                row += [tokens_per_second(good), summarise(records, arm).tokens_per_step, busy_share(good)]
                table.rows.append([*row, "reference" if plain else self._equality(records, arm)])
            for item in self.published:
                if item.task == task:
                    row = [task, item.depth or depth_of(task), f"{item.method} (not run here)"]
                    table.rows.append([*row, f"{item.speedup:.2f}x published", *[None] * 5])
        if self.published:
            table.notes.append("Not run here: figures as published by the paper, on its models and device.")
        return table

    def _equality(self, records: "Sequence[PromptRecord]", arm: str) -> str:
        from specexp.bench.equality import token_equality

        return str(token_equality(records, arm, self.baseline))

    def _drafts(self, groups: "Mapping[str, Sequence[PromptRecord]]", arms: Sequence[str]) -> "Table":
        from specexp.bench.statistics import summarise
        from specexp.bench.table import Column, Table

        table = Table(
            "What is drafted for trees of thought",
            [
                Column("task"),
                Column("arm"),
                Column("nodes/step", 1),
                Column("accepted/step"),
                Column("accepted / drafted", 1, "%"),
                Column("draft passes/step"),
                Column("overlapped", 1, "%"),
            ],
            notes=[
                "Accepted / drafted: of all nodes fed to the target. In a chain that is the paper's alpha up to drafts "
                "behind a rejected one; of a tree, siblings of the accepted node count as rejected.",
                "Overlapped: share of the target's busy time in which a drafter worked too.",
            ],
        )
        for task, records in groups.items():
            for arm in arms:
                good = answered(records, arm)
                if not good:
                    continue
                summary = summarise(records, arm)
                accepted = sum(record.accepted_drafts for record in good)
                row: list[Cell] = [task, arm, summary.nodes_per_step]
                row += [over(accepted, sum(record.steps for record in good)), summary.utilisation]
                row += [summary.draft_passes_per_step, overlapped_share(good)]
                table.rows.append(row)
        return table

    def _answers(self, groups: "Mapping[str, Sequence[PromptRecord]]", arms: Sequence[str]) -> "Table":
        from specexp.bench.table import Column, Table

        table = Table(
            "Answers by task",
            [
                Column("task"),
                Column("arm"),
                Column("items"),
                Column("failed"),
                Column("correct"),
                Column("accuracy", 1, "%"),
                Column("sequences/item", 1),
                Column("evaluations unparsable"),
            ],
            notes=["An evaluation that cannot be read is counted, and gives its state the lowest value."],
        )
        for task, records in groups.items():
            for arm in arms:
                own = [record for record in records if record.arm == arm]
                if not own:
                    continue
                grouped = [record.group for record in own if record.group is not None]
                judged = [group.correct for group in grouped if group.correct is not None]
                row: list[Cell] = [task, arm, len(own), sum(record.error is not None for record in own)]
                row += [sum(judged) if judged else None, over(sum(judged), len(judged)) if judged else None]
                row += [over(sum(group.sequences for group in grouped), len(grouped))]
                table.rows.append([*row, sum(group.unparsable for group in grouped)])
        return table

    def _draw(self, groups: "Mapping[str, Sequence[PromptRecord]]", arms: Sequence[str]) -> "Figure":
        """One panel a task, beside each other; arms and published methods are rows of all of them."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.bench.pictures import INK

        own = [arm for arm in arms if arm != self.baseline]
        theirs = list(dict.fromkeys(row.method for row in self.published))
        rows = len(own) + len(theirs)
        figure = Figure(figsize=(2.8 + 3.1 * len(groups), 1.5 + 0.29 * rows), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        plain = plain_name(self.baseline)
        figure.suptitle(f"Trees of thought: speedup over {plain}", fontsize=11, color=INK)
        panels = figure.subplots(1, len(groups), squeeze=False, sharex=True, sharey=True)[0]
        for axes, (task, records) in zip(panels, groups.items(), strict=True):
            self._draw_task(axes, task, records, own, theirs)
        panels[0].set_yticks(
            range(rows), [*own, *(f"{method} (not run here)" for method in theirs)], fontsize=8
        )
        panels[0].set_ylim(rows - 0.5, -0.5)
        axis = f"times as fast as {plain}, per token, with 95 % intervals"
        panels[len(panels) // 2].set_xlabel(axis, fontsize=9, color=INK)
        known = {
            label: handle
            for axes in panels
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        labels = sorted(known)  # decoding, end to end, published
        handles = [known[label] for label in labels]
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
        return figure

    def _draw_task(
        self,
        axes: "Axes",
        task: str,
        records: "Sequence[PromptRecord]",
        arms: Sequence[str],
        methods: Sequence[str],
    ) -> None:
        from specexp.bench.pictures import BLUE, INK, ORANGE
        from specexp.bench.statistics import paired_speedup

        place = {"va": "center", "fontsize": 8}
        for row, arm in enumerate(arms):
            if not answered(records, arm):
                continue
            whole = end_to_end(records, arm, self.baseline)
            decoding = paired_speedup(records, arm, self.baseline)
            if whole.refused or decoding.refused:
                axes.text(1.0, row, " refused", color=ORANGE, **place)  # type: ignore[arg-type]
                continue
            for aside, speedup, colour, label in (
                (-0.15, whole, BLUE, "end to end"),
                (0.15, decoding, ORANGE, "decoding, prefills apart"),
            ):
                error = [[speedup.ratio - speedup.low], [speedup.high - speedup.ratio]]
                style = {"color": colour, "marker": "o", "ms": 4, "capsize": 2, "lw": 1.2, "ls": "none"}
                axes.errorbar(speedup.ratio, row + aside, xerr=error, label=label, **style)  # type: ignore[arg-type]
            end = max(whole.high, decoding.high)
            axes.text(end, row, f"  {whole.ratio:.2f}x", color=INK, **place)  # type: ignore[arg-type]
        for item in self.published:
            if item.task == task:
                row = len(arms) + methods.index(item.method)
                axes.plot(item.speedup, row, "o", mfc="none", color=DIM, ms=5, label="published")
                axes.text(item.speedup, row, f"  {item.speedup:.2f}x", color=DIM, **place)  # type: ignore[arg-type]
        axes.axvline(1, color=INK, lw=0.8, ls=":")
        axes.set_title(task, fontsize=9.5, loc="left", color=INK)
        axes.margins(x=0.2)
        axes.grid(axis="x", color="#e3e8ec", lw=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8, colors=INK)
        axes.spines[["top", "right"]].set_visible(False)


def depth_of(task: str) -> int | None:
    """Generations on a path of a task, by its name; None if no task that was loaded is called so."""
    from specexp.data.tasks import Task

    found = list(Task.__subclasses__())
    for known in found:
        found += known.__subclasses__()
        if getattr(known, "name", None) == task:
            return known.depth
    return None
