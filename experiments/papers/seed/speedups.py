"""Speedups of trees of thought, by task and by component (SEED, Tables 1 to 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from typing_extensions import override

from experiments.papers.shared import MultiSequenceAnalysis, Row, add_rows, check_rows, report_of, table_of
from specexp.bench.equality import token_equality
from specexp.bench.metrics import metric_named
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, arm_names, categories, paired_speedup, summarize
from specexp.data.tasks import Task
from specexp.report.analysis import over
from specexp.report.pictures import bars_of
from specexp.report.publish import Report
from specexp.report.table import Cell, Table

BY_TASK = {"task": "task", "depth": "tree depth", "speedup": "end to end"}
BY_ROLE = {"role": "component", "acceptance": "alpha", "speedup": "with prefills"}
Tasks = Mapping[str, Sequence[PromptRecord]]


def answered(records: Sequence[PromptRecord], arm: str) -> list[PromptRecord]:
    """Return the arm's records that did not fail."""
    return [record for record in records if record.arm == arm and not record.error]


def whole_seconds(record: PromptRecord) -> float:
    """Return the end-to-end seconds of a prompt."""
    if record.group is not None:
        return record.group.wall_seconds
    return record.prefill_seconds + record.decode_seconds


def end_to_end(records: Sequence[PromptRecord], arm: str, baseline: str) -> Speedup:
    """Return the paired speedup in end-to-end seconds per token."""
    return paired_speedup(records, arm, baseline, cost=lambda record: over(whole_seconds(record), record.new_tokens))


def paces(records: Sequence[PromptRecord], arm: str) -> list[Cell]:
    """Return end-to-end tokens per second, tokens per step, and the share of time in which the target is busy."""
    good = answered(records, arm)
    pace = over(sum(record.new_tokens for record in good), sum(map(whole_seconds, good)))
    return [pace, summarize(good, arm).tokens_per_step, metric_named("target_utilisation").over(good)]


class ReasoningTable(MultiSequenceAnalysis):
    """Speedup of each arm on each task, end to end and of decoding alone, and whether the outputs are equal.

    End to end covers the whole search for an answer: prefills, decoding, evaluations. Decoding excludes prefills and
    search. Both speedups are of seconds per token, paired item by item, with a 95 % interval.

    Args:
        published: Rows of a paper's table: ``task`` (e.g. ``GSM8K``), ``method`` (e.g. ``SEED, (2,2,1)``), and any of
            ``speedup`` over plain decoding and ``depth`` of the tree of thoughts (by default the task's own).
    """

    name: ClassVar[str] = "reasoning_table"

    def __init__(self, published: list[Row] | None = None) -> None:
        super().__init__()
        self.published = check_rows(published, ["speedup", "depth"], ["task", "method"])

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        tasks: dict[str, Sequence[PromptRecord]] = {**by_task(records)}
        for row in self.published:
            tasks.setdefault(row["task"], [])
        arms = arm_names(records)
        tables = {self.name: self._speed(tasks, arms), f"{self.name}_answers": _answers(tasks, arms)}
        bars = [
            replace(end_to_end(own, arm, self.baseline), arm=f"{task}, {arm}")
            for task, own in tasks.items()
            for arm in arms
            if arm != self.baseline and answered(own, arm)
        ]
        if not bars:
            return Report(tables)
        theirs = {f"{row['task']}, {row['method']}": row["speedup"] for row in self.published if "speedup" in row}
        title, axis = "Trees of thought, end to end", f"speedup over {self.baseline} (95 % interval)"
        return Report(tables, {self.name: bars_of(bars, [""] * len(bars), title, axis, theirs)})

    def _speed(self, tasks: Tasks, arms: Sequence[str]) -> Table:
        table = table_of(
            f"Speedup over {self.baseline} by task",
            "task | tree depth | arm | end to end:interval | decoding:interval | tokens/s:.0 | tokens/step"
            " | target busy:.1% | equal outputs",
            "Seconds per token, paired item by item, geometric mean, 95 % interval. End to end: the "
            "whole search, prefills included; decoding: without prefills and search. Tokens/s are end to end.",
            "Target busy: share of the whole time in which the target runs a pass or a prefill.",
        )
        for task, records in tasks.items():
            for arm in filter(partial(answered, records), arms):
                reference = arm == self.baseline
                equal = "reference" if reference else str(token_equality(records, arm, self.baseline))
                both = (end_to_end, paired_speedup)
                speedups = [None if reference else speedup(records, arm, self.baseline) for speedup in both]
                table.rows.append([task, depth_of(task), arm, *speedups, *paces(records, arm), equal])
            theirs = [{"depth": depth_of(task), **row} for row in self.published if row["task"] == task]
            add_rows(table, theirs, BY_TASK)
        return table


def _answers(tasks: Tasks, arms: Sequence[str]) -> Table:
    table = table_of(
        "Answers by task",
        "task | arm | items | failed | correct | accuracy:.1% | sequences/item:.1 | evaluations | unparsable",
        "An evaluation that cannot be parsed gives its state the lowest value.",
    )
    for task, records in tasks.items():
        for arm in arms:
            own = [record for record in records if record.arm == arm]
            if not own:
                continue
            groups = [record.group for record in own if record.group is not None]
            judged = [group.correct for group in groups if group.correct is not None]
            correct = [sum(judged), over(sum(judged), len(judged))] if judged else [None, None]
            sequences = over(sum(group.sequences for group in groups), len(groups))
            failed = sum(record.error is not None for record in own)
            evaluations = sum(one.roles["evaluator"].sequences for one in groups if "evaluator" in one.roles)
            counts = [sequences, evaluations, sum(group.unparsable for group in groups)]
            table.rows.append([task, arm, len(own), failed, *correct, *counts])
    return table


def depth_of(task: str) -> int | None:
    """Return the depth of the tree of thoughts of the task with this name; None for other data."""
    found = list(Task.__subclasses__())
    for known in found:
        found += known.__subclasses__()  # the list grows while it is read: subclasses of any depth
        if getattr(known, "name", None) == task:
            return known.depth
    return None


def by_task(records: Sequence[PromptRecord]) -> dict[str, list[PromptRecord]]:
    """Return the records of each task, in the order in which tasks appear."""
    return {task: [record for record in records if record.category == task] for task in categories(records)}


class Roles(MultiSequenceAnalysis):
    """Sequences, acceptance and speedup of each component of a search. Speedups over plain decoding are of the
    component's decode seconds per token, without and with prefills, paired item by item.

    Alpha is the share of drafted *positions* that are accepted. A tree of depth three has three, whatever its width.

    Args:
        published: Rows of a paper's table: ``role`` (``generator`` or ``evaluator``), ``method``, and any of
            ``acceptance`` (alpha) and ``speedup`` over plain decoding.
    """

    name: ClassVar[str] = "roles"

    def __init__(self, published: list[Row] | None = None) -> None:
        super().__init__()
        self.published = check_rows(published, ["speedup", "acceptance"], ["role", "method"])

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = table_of(
            "The components of a search",
            "component | arm | sequences | tokens | tokens/step | accepted/step"
            f" | alpha:.1% | decoding vs {self.baseline}:interval | with prefills:interval",
            "Seconds per token of the component's own runs, paired by item; geometric mean, 95 % interval.",
        )
        roles = _roles(records)
        for role in roles:
            for arm in arm_names(records):
                if counts := _counts(records, arm, role):
                    speedups: list[Cell] = [None, None]
                    if arm != self.baseline:
                        costs = (_cost(role, prefills) for prefills in (False, True))
                        speedups = [paired_speedup(records, arm, self.baseline, cost=cost) for cost in costs]
                    table.rows.append([role, arm, *counts, *speedups])
            add_rows(table, [row for row in self.published if row["role"] == role], BY_ROLE)
        add_rows(table, [row for row in self.published if row["role"] not in roles], BY_ROLE)
        return report_of(self, table)


def _roles(records: Sequence[PromptRecord]) -> list[str]:
    """Return the components in the order in which they appear."""
    return list(dict.fromkeys(role for record in records if record.group for role in record.group.roles))


def _counts(records: Sequence[PromptRecord], arm: str, role: str) -> list[Cell]:
    """Return sequences, tokens, tokens per step, accepted drafts per step and alpha; empty without sequences."""
    groups = [record.group for record in answered(records, arm) if record.group is not None]
    found = [group.roles[role] for group in groups if role in group.roles]
    names = ("sequences", "tokens", "steps", "accepted_drafts", "drafted_positions")
    sequences, tokens, steps, accepted, drafted = (sum(getattr(one, name) for one in found) for name in names)
    if not sequences:
        return []
    a_step = over(accepted, steps) if drafted else None  # plain decoding drafts nothing
    return [sequences, tokens, over(tokens, steps), a_step, over(accepted, drafted)]


def _cost(role: str, prefills: bool) -> Callable[[PromptRecord], float | None]:
    """Return a function that returns a component's seconds per token in a record; None if it did not run."""

    def cost(record: PromptRecord) -> float | None:
        own = record.group.roles.get(role) if record.group else None
        if own is None:
            return None
        return over(own.decode_seconds + (own.prefill_seconds if prefills else 0.0), own.tokens)

    return cost
