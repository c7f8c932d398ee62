"""A yardstick as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.bench.table import Column, Table
from specexp.core.messages import counted

if TYPE_CHECKING:
    from specexp.replay.play.yardstick import Yardstick


def yardstick_table(found: Yardstick) -> Table:
    """Both trees and the knee of the curve: what all positions promise, and what a replayed run takes."""
    columns = [
        Column("tree"),
        Column("nodes"),
        Column("depth"),
        Column("tokens/step, all positions"),
        Column("tokens/s promised", 1),
        Column("tokens/step, replayed"),
        Column("tokens/s, replayed", 1),
        Column("of plain decoding", 2, "x"),
    ]
    table = Table(f"Yardstick ({found.profile})", columns)
    for tree in (found.most_hit, found.sequoia):
        table.rows.append(
            [
                tree.family,
                tree.nodes,
                tree.depth,
                tree.promised_tokens_per_step,
                tree.promised_goodput,
                tree.tokens_per_step,
                tree.goodput,
                tree.goodput / found.plain_goodput,
            ]
        )
    knee = found.knee
    table.rows.append(
        [
            "knee of the curve",
            knee.nodes,
            knee.depth,
            None,
            knee.promised_goodput,
            knee.tokens_per_step,
            knee.goodput,
            knee.goodput / found.plain_goodput,
        ]
    )
    table.notes += [
        f"Trees are chosen by what is promised at {counted(found.positions, 'position')} of the output, and replayed "
        "on the same prompts: other prompts may give less.",
        "Sequoia's promise is its programme's, which takes acceptances at different depths for independent.",
    ]
    return table


def curve_table(found: Yardstick) -> Table:
    """The curve, one size a row."""
    columns = [
        Column("nodes"),
        Column("depth"),
        Column("tokens/s promised", 1),
        Column("tokens/step, replayed"),
        Column("tokens/s, replayed", 1),
    ]
    rows = [
        [point.nodes, point.depth, point.promised_goodput, point.tokens_per_step, point.goodput]
        for point in found.curve
    ]
    return Table(f"Most-hit trees of every size ({found.profile})", columns, [list(row) for row in rows])
