"""How much of what was drafted was accepted, by position in the draft and by category."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specexp.bench.record import PromptRecord, by_position
from specexp.bench.report import grouped
from specexp.bench.statistics import arm_names
from specexp.bench.table import Cell, Column, Table

MOST_POSITIONS = 12
"""Positions that the table shows; deeper ones are few."""


def acceptance_tables(records: Iterable[PromptRecord]) -> dict[str, Table]:
    """Of every arm whose steps are known the accepted share of drafted positions, by position and by category.

    Args:
        records: Records of a run.

    Returns:
        Tables by name: ``positions``, and ``acceptance`` where there is more than one category; nothing where nothing
        was drafted.
    """
    records = [record for record in records if not record.error and any(record.drafted_at)]
    arms = arm_names(records)
    if not arms:
        return {}
    own = {arm: [record for record in records if record.arm == arm] for arm in arms}
    shown = min(MOST_POSITIONS, max(len(record.drafted_at) for record in records))
    shares = [Column(str(position), 1, "%") for position in range(1, shown + 1)]
    positions = Table(
        "Acceptance by position",
        [Column("arm"), Column("alpha", 1, "%"), *shares],
        notes=[
            "Of the steps whose draft reached a position, the share whose accepted path did too; alpha: of all drafted "
            "positions together, whatever a tree's width.",
        ],
    )
    for arm, found in own.items():
        drafted = by_position(record.drafted_at for record in found)
        accepted = by_position(record.accepted_at for record in found)
        told: list[Cell] = [
            accepted[at] / drafted[at] if at < len(accepted) else 0.0
            for at in range(min(shown, len(drafted)))
        ]
        positions.rows.append([arm, _alpha(found), *told, *[None] * (shown - len(told))])
    tables = {"positions": positions}
    groups = grouped(records)
    if len(groups) > 1:
        heads = [Column(name, 1, "%") for name in (*groups, "all")]
        tables["acceptance"] = Table(
            "Acceptance by category", [Column("arm"), *heads], notes=["Alpha, as above."]
        )
        for arm, found in own.items():
            parts = [[record for record in group if record.arm == arm] for group in groups.values()]
            tables["acceptance"].rows.append([arm, *map(_alpha, parts), _alpha(found)])
    return tables


def _alpha(records: Sequence[PromptRecord]) -> float | None:
    drafted = sum(sum(record.drafted_at) for record in records)
    return sum(sum(record.accepted_at) for record in records) / drafted if drafted else None
