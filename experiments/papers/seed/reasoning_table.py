"""Speedups of trees of thought by task and execution strategy (SEED, Tables 1 and 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from typing_extensions import override

from experiments.papers.published import NOT_RUN, Row, add_rows, check_rows, figure_of, label_of
from experiments.papers.seed.groups import (
    answered,
    answers,
    both_speedups,
    busy_share,
    by_task,
    overlapped_share,
    plain_name,
    tokens_per_second,
)
from specexp.bench.analysis import MultiSequenceAnalysis, over
from specexp.bench.equality import token_equality
from specexp.bench.figures import draw_speedups
from specexp.bench.pictures import BLUE, INK, ORANGE, legend_below, name_rows, new_figure, rule
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import arm_names, summarise
from specexp.bench.table import Table, columns
from specexp.data.tasks import Task

PUBLISHED = {"task": "task", "depth": "tree depth", "speedup": "end to end"}
DIM = "#71808d"
Tasks = Mapping[str, Sequence[PromptRecord]]


class ReasoningTable(MultiSequenceAnalysis):
    """Every arm on every task: how much faster than plain decoding, end to end and in decoding alone, why, and whether
    it still says the same.

    End to end is the whole search for an answer: prompts, prefills, decoding, evaluations read. Decoding leaves the
    prefills and the search out. Both are seconds per token, paired item by item, with a 95 % bootstrap interval.

    Args:
        baseline: Arm that speedups are over.
        published: Rows of a paper's table to show beside it: ``task`` (as it calls itself, e.g. ``GSM8K``), ``method``
            (e.g. ``SEED, (2,2,1)``), and any of ``speedup`` over plain decoding and ``depth`` (of the tree of thoughts;
            that of the task if left out).
    """

    name: ClassVar[str] = "reasoning_table"

    def __init__(self, baseline: str = "engine", published: list[Row] | None = None) -> None:
        super().__init__(baseline)
        self.published = check_rows(published, ["speedup", "depth"], texts=["task", "method"])

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        tasks: dict[str, Sequence[PromptRecord]] = {**by_task(records)}
        for row in self.published:
            tasks.setdefault(str(row["task"]), [])
        arms = arm_names(records)
        tables = {
            self.name: self._speed(tasks, arms),
            f"{self.name}_drafts": _drafts(tasks, arms),
            f"{self.name}_answers": _answers(tasks, arms),
        }
        drawn = any(arm != self.baseline for arm in arms)
        return Report(tables, {self.name: self._draw(tasks, arms)} if drawn else {})

    def _speed(self, tasks: Tasks, arms: Sequence[str]) -> Table:
        table = Table(
            f"Speedup over {self.baseline} by task",
            columns(
                "task | tree depth | arm | end to end:interval | decoding:interval | tokens/s:.0 | tokens/step"
                " | target busy:.1% | equal outputs"
            ),
            notes=[
                "Seconds per token, paired item by item, geometric mean, 95 % bootstrap interval. End to end: the "
                "whole search, prefills included; decoding: without prefills and search. Tokens/s are end to end.",
                "Target busy: share of the whole time in which the target runs a pass or a prefill.",
            ],
        )
        for task, records in tasks.items():
            for _, arm, good in answers({task: records}, arms):
                equal = "reference"
                if arm != self.baseline:
                    equal = str(token_equality(records, arm, self.baseline))
                speedups = both_speedups(records, arm, self.baseline)
                steps = summarise(records, arm).tokens_per_step
                paces = [tokens_per_second(good), steps, busy_share(good)]
                table.rows.append([task, depth_of(task), arm, *speedups, *paces, equal])
            theirs = [{"depth": depth_of(task), **row} for row in self.published if row["task"] == task]
            add_rows(table, theirs, PUBLISHED)  # type: ignore[arg-type]
        if self.published:
            table.notes.append(NOT_RUN)
        return table

    def _draw(self, tasks: Tasks, arms: Sequence[str]) -> Figure:
        """One panel a task, beside each other; arms and published methods are rows of all of them."""
        own = [arm for arm in arms if arm != self.baseline]
        labels = [*own, *dict.fromkeys(map(label_of, self.published))]
        plain = plain_name(self.baseline)
        figure, [panels] = new_figure(
            2.8 + 3.1 * len(tasks),
            1.5 + 0.29 * len(labels),
            f"Trees of thought: speedup over {plain}",
            1,
            len(tasks),
            sharex=True,
            sharey=True,
        )
        for axes, (task, records) in zip(panels, tasks.items(), strict=True):
            for place, arm in enumerate(own):
                if answered(records, arm):
                    self._draw_arm(axes, place, records, arm)
            for row in self.published:
                if row["task"] == task and "speedup" in row:
                    place, ratio = labels.index(label_of(row)), figure_of(row, "speedup")
                    axes.plot(ratio, place, "o", mfc="none", color=DIM, ms=5, label="published")
                    axes.text(ratio, place, f"  {ratio:.2f}x", va="center", fontsize=8, color=DIM)
            axes.axvline(1, color=INK, lw=0.8, ls=":")
            axes.set_title(task, fontsize=9.5, loc="left", color=INK)
            axes.margins(x=0.2)
            rule(axes, "x")
        name_rows(panels[0], labels)
        axis = f"times as fast as {plain}, per token, with 95 % intervals"
        panels[len(panels) // 2].set_xlabel(axis, fontsize=9, color=INK)
        found = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in panels)
        known = {label: handle for panel in found for handle, label in panel}
        shown = sorted(known)  # decoding, end to end, published
        legend_below(figure, 3, [known[label] for label in shown], shown)
        return figure

    def _draw_arm(self, axes: Axes, place: int, records: Sequence[PromptRecord], arm: str) -> None:
        text: dict[str, Any] = {"va": "center", "fontsize": 8}
        speedups = [one for one in both_speedups(records, arm, self.baseline) if one is not None]
        if any(speedup.refused for speedup in speedups):
            axes.text(1.0, place, " refused", color=ORANGE, **text)
            return
        looks = ((-0.15, BLUE, "end to end"), (0.15, ORANGE, "decoding, prefills apart"))
        style: dict[str, Any] = {"marker": "o", "ms": 4, "capsize": 2, "lw": 1.2, "ls": "none"}
        for speedup, (aside, colour, label) in zip(speedups, looks, strict=True):
            draw_speedups(axes, [place + aside], [speedup], upright=False, color=colour, label=label, **style)
        end = max(speedup.high for speedup in speedups)
        axes.text(end, place, f"  {speedups[0].ratio:.2f}x", color=INK, **text)


def _drafts(tasks: Tasks, arms: Sequence[str]) -> Table:
    table = Table(
        "What is drafted for trees of thought",
        columns(
            "task | arm | nodes/step:.1 | accepted/step | accepted / drafted:.1% | draft passes/step | overlapped:.1%"
        ),
        notes=[
            "Accepted / drafted: of all nodes fed to the target. In a chain that is the paper's alpha up to drafts "
            "behind a rejected one; of a tree, siblings of the accepted node count as rejected.",
            "Overlapped: share of the target's busy time in which a drafter worked too.",
        ],
    )
    for task, arm, good in answers(tasks, arms):
        summary = summarise(good, arm)
        accepted = over(sum(record.accepted_drafts for record in good), sum(record.steps for record in good))
        shares = [summary.utilisation, summary.draft_passes_per_step, overlapped_share(good)]
        table.rows.append([task, arm, summary.nodes_per_step, accepted, *shares])
    return table


def _answers(tasks: Tasks, arms: Sequence[str]) -> Table:
    table = Table(
        "Answers by task",
        columns(
            "task | arm | items | failed | correct | accuracy:.1% | sequences/item:.1 | evaluations unparsable"
        ),
        notes=["An evaluation that cannot be read is counted, and gives its state the lowest value."],
    )
    for task, records in tasks.items():
        for arm in arms:
            own = [record for record in records if record.arm == arm]
            if not own:
                continue
            groups = [record.group for record in own if record.group is not None]
            judged = [group.correct for group in groups if group.correct is not None]
            failed = sum(record.error is not None for record in own)
            correct = [sum(judged), over(sum(judged), len(judged))] if judged else [None, None]
            sequences = over(sum(group.sequences for group in groups), len(groups))
            unparsable = sum(group.unparsable for group in groups)
            table.rows.append([task, arm, len(own), failed, *correct, sequences, unparsable])
    return table


def depth_of(task: str) -> int | None:
    """Generations on a path of a task, by its name; None if no task that was loaded is called so."""
    found = list(Task.__subclasses__())
    for known in found:
        found += known.__subclasses__()
        if getattr(known, "name", None) == task:
            return known.depth
    return None
