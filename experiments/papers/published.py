"""Rows of a paper's table as a configuration has them: shown beside ours, never run here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specexp.bench.table import Table
from specexp.core.messages import did_you_mean

Row = dict[str, str | float | dict[float, float]]
NOT_RUN = "Not run here: figures as published by the paper, on its models and device."


def check_rows(
    rows: Sequence[Row] | None,
    figures: Iterable[str],
    *,
    shares: Iterable[str] = (),
    texts: Sequence[str] = ("method",),
) -> list[Row]:
    """The rows, if they say what an analysis can show.

    Args:
        rows: Rows of a paper's table; None are none.
        figures: Keys of numbers above 0, or of several such by their place on a grid; a row may leave any out.
        shares: Keys of numbers from 0 to 1; likewise.
        texts: Keys of words, which every row has.

    Raises:
        ValueError: A row lacks a text, has another key, or a figure is no such number.
    """
    shares = list(shares)
    known = [*texts, *figures, *shares]
    for number, row in enumerate(rows or ()):
        for key in row:
            if key not in known:
                raise ValueError(f"published.{number} has no {key!r}{did_you_mean(key, known)}")
        for key in texts:
            if not isinstance(row.get(key), str):
                raise ValueError(f"published.{number}.{key} is missing; it says what the figures are of")
        for key in row.keys() - set(texts):
            _check_figure(f"published.{number}.{key}", row[key], key in shares)
    return list(rows or ())


def _check_figure(place: str, value: object, share: bool) -> None:
    for one in value.values() if isinstance(value, Mapping) else [value]:
        number = isinstance(one, int | float) and not isinstance(one, bool)
        if not number or not (0 <= one <= 1 if share else one > 0):  # type: ignore[operator]
            allowed = "a share from 0 to 1" if share else "a number above 0"
            raise ValueError(f"{place} is {one!r}; allowed is {allowed}")


def label_of(row: Row) -> str:
    """What the row of a table or a picture is called."""
    return f"{row['method']} (not run here)"


def figure_of(row: Row, key: str) -> float:
    """A figure that the row has.

    Raises:
        KeyError: It has none.
    """
    value = row[key]
    assert isinstance(value, int | float)  # as check_rows has seen
    return value


def add_rows(table: Table, rows: Iterable[Row], headings: Mapping[str, str]) -> None:
    """Add a paper's rows below ours.

    Args:
        table: The table, which has a column ``arm``.
        rows: As :func:`check_rows` gave them.
        headings: Heading of the column in which the value of a key stands; other keys have none.
    """
    speedups = {column.title for column in table.columns if column.interval}
    for row in rows:
        cells: dict[str, Any] = {"arm": label_of(row)}
        for key, heading in headings.items():
            value: Any = row.get(key)
            if value is not None:
                cells[heading] = f"{value:.2f}x published" if heading in speedups else value
        table.add(cells)
