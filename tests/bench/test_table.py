"""Tables: headings from one line, rows by heading."""

import pytest

from specexp.bench.table import Column, Table, columns


def test_a_line_says_how_every_column_is_shown():
    found = columns(
        "arm | tokens/step | busy:.1% | a:b step:.3 ms | at 4:.2x | of grafted phrases':.0 | gain:interval"
    )
    assert found == [
        Column("arm"),
        Column("tokens/step"),
        Column("busy", 1, "%"),
        Column("a:b step", 3, " ms"),
        Column("at 4", 2, "x"),
        Column("of grafted phrases'", 0),
        Column("gain", interval=True),
    ]


def test_an_empty_heading_is_refused():
    with pytest.raises(ValueError, match="a heading is empty in"):
        columns("arm | | steps")


def test_a_row_by_headings_leaves_the_others_empty():
    table = Table("Arms", columns("arm | steps | busy:.1%"))
    table.add({"busy": 0.25, "arm": "engine"})
    assert table.shown() == [["engine", "-", "25.0 %"]]
    with pytest.raises(ValueError, match="Arms: no column is headed 'step'"):
        table.add({"step": 3})
