"""Thought generator and state evaluator apart: how well each is drafted, and how much faster it is (SEED, Table 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from experiments.papers.published import NOT_RUN, Row, add_rows, check_rows
from experiments.papers.seed.groups import answered, by_task
from specexp.bench.analysis import MultiSequenceAnalysis, over
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, arm_names, paired_speedup
from specexp.bench.table import Cell, Table, columns

PUBLISHED = {"role": "component", "acceptance": "alpha", "speedup": "with prefills"}


class Roles(MultiSequenceAnalysis):
    """What each component of a search asked for, how much of its drafts was accepted, and its speedup over plain
    decoding: in the role's own decode seconds per token, and with its prefills, paired item by item.

    Args:
        baseline: Arm that speedups are over.
        published: Rows of a paper's table to show beside it: ``role`` (``generator`` or ``evaluator``), ``method``,
            and any of ``acceptance`` (alpha, see below) and ``speedup`` over plain decoding.

    Alpha is the share of drafted *positions* that are accepted: a tree that is three deep drafts three, however many
    nodes it has at each.
    """

    name: ClassVar[str] = "roles"

    def __init__(self, baseline: str = "engine", published: list[Row] | None = None) -> None:
        super().__init__(baseline)
        self.published = check_rows(published, ["speedup"], shares=["acceptance"], texts=["role", "method"])

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        arms, tasks = arm_names(records), by_task(records)
        whole = self._table("The components of a search", {"": records}, arms)
        for row in self.published:
            if row["role"] not in _roles(records):
                add_rows(whole, [row], PUBLISHED)
        if self.published:
            whole.notes.append(NOT_RUN)
        tables = {self.name: whole}
        if len(tasks) > 1:
            title = "The components of a search by task"
            tables[f"{self.name}_by_task"] = self._table(title, tasks, arms, named=True)
        return Report(tables)

    def _table(
        self,
        title: str,
        tasks: Mapping[str, Sequence[PromptRecord]],
        arms: Sequence[str],
        named: bool = False,
    ) -> Table:
        table = Table(
            title,
            columns(
                f"{'task | ' if named else ''}component | arm | sequences | tokens | tokens/step | accepted/step"
                f" | alpha:.1% | decoding vs {self.baseline}:interval | with prefills:interval"
            ),
            notes=[
                "Seconds per token of the component's own runs, paired item by item, geometric mean, 95 % bootstrap "
                "interval; alpha: accepted tokens of the drafted positions, whatever a tree's width.",
            ],
        )
        for task, records in tasks.items():
            for role in _roles(records):
                for arm in arms:
                    if counts := _counts(records, arm, role):
                        cells: list[Cell] = [role, arm, *counts, *self._speedups(records, arm, role)]
                        table.rows.append([task, *cells] if named else cells)
                if not named:
                    add_rows(table, [row for row in self.published if row["role"] == role], PUBLISHED)
        return table

    def _speedups(self, records: Sequence[PromptRecord], arm: str, role: str) -> list[Speedup | None]:
        if arm == self.baseline:
            return [None, None]
        costs = (_cost(role, prefills) for prefills in (False, True))
        return [paired_speedup(records, arm, self.baseline, cost=cost) for cost in costs]


def _roles(records: Sequence[PromptRecord]) -> list[str]:
    """Components in the order they first appear."""
    return list(dict.fromkeys(role for record in records if record.group for role in record.group.roles))


def _counts(records: Sequence[PromptRecord], arm: str, role: str) -> list[Cell]:
    """Sequences, tokens, tokens a step, accepted drafts a step and of drafted positions; nothing without a sequence."""
    groups = [record.group for record in answered(records, arm) if record.group is not None]
    found = [group.roles[role] for group in groups if role in group.roles]
    names = ("sequences", "tokens", "steps", "accepted_drafts", "drafted_positions")
    sequences, tokens, steps, accepted, drafted = (sum(getattr(one, name) for one in found) for name in names)
    if not sequences:
        return []
    a_step = over(accepted, steps) if drafted else None
    return [sequences, tokens, over(tokens, steps), a_step, over(accepted, drafted)]


def _cost(role: str, prefills: bool) -> Callable[[PromptRecord], float | None]:
    """Seconds per token of a component."""

    def cost(record: PromptRecord) -> float | None:
        own = record.group.roles.get(role) if record.group else None
        if own is None:
            return None
        return over(own.decode_seconds + (own.prefill_seconds if prefills else 0.0), own.tokens)

    return cost
