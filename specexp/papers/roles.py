"""Thought generator and state evaluator apart: how well each is drafted, and how much faster it is (SEED, Table 2)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from specexp.bench.analysis import MultiSequenceAnalysis, check_baseline
from specexp.bench.publish import Report
from specexp.papers._groups import over

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord, Role
    from specexp.bench.table import Cell, Table
    from specexp.core.parts import Parts

Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class PublishedRole:
    """A row of a paper's table, not run here.

    Attributes:
        role: ``generator`` or ``evaluator``.
        method: what was measured, and on what.
        acceptance: share of drafted tokens that are accepted.
        speedup: over plain decoding.
    """

    role: str
    method: str
    acceptance: Annotated[float, Field(ge=0, le=1)] | None = None
    speedup: Positive | None = None


class Roles(MultiSequenceAnalysis):
    """What each component of a search asked for, how much of its drafts was accepted, and its speedup over plain
    decoding: in the role's own decode seconds per token, and with its prefills, paired item by item.

    Args:
        baseline: arm that speedups are over.
        published: rows of a paper's table to show beside it.
    """

    name: ClassVar[str] = "roles"

    def __init__(self, baseline: str = "engine", published: list[PublishedRole] | None = None) -> None:
        self.baseline = baseline
        self.published = published or []

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Nothing is kept.

        Raises:
            ValueError: ``baseline`` is none of the arms.
        """
        check_baseline(self, self.baseline, arms)

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """A table of all items, and one by task if there are several."""
        from specexp.bench.statistics import arm_names, categories

        records = list(records)
        arms = arm_names(records)
        tables = {self.name: self._table({"": records}, arms)}
        tasks = categories(records)
        if len(tasks) > 1:
            by_task = {task: [record for record in records if record.category == task] for task in tasks}
            tables[f"{self.name}_by_task"] = self._table(by_task, arms)
        return Report(tables)

    def _table(self, groups: "Mapping[str, Sequence[PromptRecord]]", arms: Sequence[str]) -> "Table":
        from specexp.bench.statistics import paired_speedup
        from specexp.bench.table import Column, Table

        named = "" not in groups
        table = Table(
            "The components of a search" + (" by task" if named else ""),
            [
                *([Column("task")] if named else []),
                Column("component"),
                Column("arm"),
                Column("sequences"),
                Column("tokens"),
                Column("tokens/step"),
                Column("accepted/step"),
                Column("accepted / drafted", 1, "%"),
                Column(f"decoding vs {self.baseline}", interval=True),
                Column("with prefills", interval=True),
            ],
            notes=[
                "Seconds per token of the component's own runs, paired item by item, geometric mean, 95 % bootstrap "
                "interval; accepted / drafted: of all nodes fed to the target.",
            ],
        )
        for task, records in groups.items():
            for role in _roles(records):
                for arm in arms:
                    sums = _sums(records, arm, role)
                    if not sums["sequences"]:
                        continue
                    plain = arm == self.baseline
                    row: list[Cell] = [*([task] if named else []), role, arm]
                    row += [sums["sequences"], sums["tokens"], over(sums["tokens"], sums["steps"])]
                    row += [
                        over(sums["accepted_drafts"], sums["steps"]) if sums["drafted_nodes"] else None,
                        over(sums["accepted_drafts"], sums["drafted_nodes"]),
                    ]
                    row += [
                        None
                        if plain
                        else paired_speedup(records, arm, self.baseline, cost=_cost(role, prefills))
                        for prefills in (False, True)
                    ]
                    table.rows.append(row)
                for item in self.published if not named else ():
                    if item.role == role:
                        table.rows.append(_published(item))
        known = {role for records in groups.values() for role in _roles(records)}
        if not named:
            table.rows += [_published(item) for item in self.published if item.role not in known]
            if self.published:
                table.notes.append(
                    "Not run here: figures as published by the paper, on its models and device."
                )
        return table


def _roles(records: "Sequence[PromptRecord]") -> list[str]:
    """Components in the order they first appear."""
    return list(dict.fromkeys(role for record in records if record.group for role in record.group.roles))


def _sums(records: "Sequence[PromptRecord]", arm: str, role: str) -> dict[str, int]:
    found = [
        record.group.roles[role]
        for record in records
        if record.arm == arm and not record.error and record.group and role in record.group.roles
    ]
    counts = ("sequences", "tokens", "steps", "accepted_drafts", "drafted_nodes")
    return {name: sum(getattr(one, name) for one in found) for name in counts}


def _cost(role: str, prefills: bool) -> "Callable[[PromptRecord], float | None]":
    def cost(record: "PromptRecord") -> float | None:
        own: Role | None = record.group.roles.get(role) if record.group else None
        if own is None or not own.tokens:
            return None
        return (own.decode_seconds + (own.prefill_seconds if prefills else 0.0)) / own.tokens

    return cost


def _published(item: PublishedRole) -> "list[Cell]":
    speedup = None if item.speedup is None else f"{item.speedup:.2f}x published"
    return [item.role, f"{item.method} (not run here)", *[None] * 4, item.acceptance, None, speedup]
