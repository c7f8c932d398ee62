"""Rows of a paper's table: plain data, checked, and shown where they belong."""

import pytest

from experiments.papers.shared import add_rows, check_rows
from specexp.bench.table import Table, columns

ROWS = [{"method": "theirs", "speedup": 2.0, "share": 0.5}, {"method": "others"}]


def checked(*rows):
    return check_rows(list(rows), ["speedup", "by length", "share"])


def test_rows_stand_under_their_headings_and_what_is_not_stated_is_empty():
    table = Table("Arms", columns("arm | busy:.1% | gain:interval"))
    add_rows(table, checked(*ROWS), {"speedup": "gain", "share": "busy"})
    assert table.shown() == [
        ["theirs (not run here)", "50.0 %", "2.00x published"],
        ["others (not run here)", "-", "-"],
    ]
    assert check_rows(None, ["speedup"]) == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"speedup": 2.0}, "published.1.method must be a text"),
        ({"method": 3}, "published.1.method must be a text"),
        ({"method": "x", "speed": 2.0}, "published.1 has no 'speed'; did you mean 'speedup'?"),
        ({"method": "x", "speedup": 0}, "published.1.speedup must be a number above 0, got 0"),
        ({"method": "x", "speedup": True}, "published.1.speedup must be a number above 0, got True"),
        (
            {"method": "x", "by length": {4: "fast"}},
            "published.1.by length must be a number above 0, got 'fast'",
        ),
    ],
)
def test_a_mistake_names_its_row_and_key(row, said):
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        checked(ROWS[0], row)
