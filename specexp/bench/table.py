"""One set of rows, shown in the terminal, in markdown and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specexp.bench.statistics import Speedup

if TYPE_CHECKING:
    import rich.table

Cell = str | float | int | Speedup | None
_HEAD = re.compile(r"(?P<title>.+?)(:\.(?P<digits>\d)(?P<unit>.*)|:(?P<interval>interval))?")


@dataclass(frozen=True)
class Column:
    """A column."""

    title: str
    digits: int = 2  # digits of numbers after the point
    unit: str = ""  # text behind numbers; with ``%`` they are shares
    interval: bool = False  # whether its cells are speedups, which CSV spreads over four columns

    def show(self, cell: Cell) -> str:
        """Return a cell as a person reads it."""
        if cell is None:
            return "-"
        if isinstance(cell, Speedup):
            return cell.unlabelled if "modelled" in self.title else str(cell)
        if isinstance(cell, str):
            return cell
        if self.unit == "%":
            return f"{100 * cell:.{self.digits}f} %"
        return f"{cell}{self.unit}" if isinstance(cell, int) else f"{cell:.{self.digits}f}{self.unit}"

    def csv_titles(self) -> list[str]:
        """Return the headings in CSV."""
        ends = ("", " low", " high", " refused") if self.interval else ("",)
        return [f"{self.title}{end}" for end in ends]

    def csv_cells(self, cell: Cell) -> list[str | float | int]:
        """Return a cell in CSV: numbers unrounded."""
        if isinstance(cell, Speedup):
            if cell.refused:
                return ["", "", "", cell.refused]
            return [cell.ratio, cell.low, cell.high, ""] if cell.has_interval else [cell.ratio, "", "", ""]
        return ["" if cell is None else cell, *[""] * (3 * self.interval)]


def columns(heads: str) -> list[Column]:
    """Return columns from one line: headings between bars, each with the style of its numbers after a colon.

    Args:
        heads: ``.1`` is one digit after the point, ``.1%`` a share, ``.2 ms`` and ``.2x`` two digits and a unit;
            ``interval`` is a speedup. Two digits without.

    Example:
        >>> [column.digits for column in columns("arm | tokens/step | step:.3 ms")]
        [2, 2, 3]
    """
    found = []
    for head in heads.split("|"):
        match = _HEAD.fullmatch(head.strip())
        if match is None:
            raise ValueError(f"a heading is empty in {heads!r}")
        digits = int(match["digits"] or Column.digits)
        found.append(Column(match["title"], digits, match["unit"] or "", match["interval"] is not None))
    return found


@dataclass
class Table:
    """Rows under columns, with a title above and notes below.

    Example:
        >>> table = Table("Speed", [Column("arm"), Column("tokens/s", 0)], [["engine", 123.4]]) >>>
        print(table.to_csv(), end="") arm,tokens/s engine,123.4
    """

    title: str
    columns: Sequence[Column]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def titles(self) -> list[str]:
        """The headings."""
        return [column.title for column in self.columns]

    def add(self, cells: Mapping[str, Cell]) -> None:
        """Add a row from cells by heading, other cells empty; raises ValueError if a heading does not exist."""
        for title in cells:
            if title not in self.titles:
                raise ValueError(f"{self.title}: no column is headed {title!r}")
        self.rows.append([cells.get(title) for title in self.titles])

    def shown(self) -> list[list[str]]:
        """Return the cells as text."""
        return [
            [column.show(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows
        ]

    def records(self) -> list[dict[str, str | float | int | None]]:
        """Return rows as mappings from heading to cell: numbers unrounded, speedups as text."""
        return [
            {
                column.title: column.show(cell) if isinstance(cell, Speedup) else cell
                for column, cell in zip(self.columns, row, strict=True)
            }
            for row in self.rows
        ]

    def to_rich(self) -> rich.table.Table:
        """Return the table for the terminal."""
        from rich.markup import escape
        from rich.table import Table as RichTable

        notes = escape("\n".join(self.notes)) or None
        table = RichTable(
            title=escape(self.title), title_justify="left", caption=notes, caption_justify="left"
        )
        for number, title in enumerate(self.titles):
            table.add_column(escape(title), justify="right" if number else "left", overflow="fold")
        for row in self.shown():
            table.add_row(*map(escape, row))
        return table

    def to_markdown(self) -> str:
        """Return the table for a README."""
        rows = [[cell.replace("|", "\\|") for cell in row] for row in self.shown()]
        first, *lines = (f"| {' | '.join(row)} |" for row in [self.titles, *rows])
        rule = "|---" + "|---:" * (len(self.columns) - 1) + "|"
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([f"**{self.title}**", "", first, rule, *lines, *notes]) + "\n"

    def to_csv(self) -> str:
        """Return the table for a program."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([title for column in self.columns for title in column.csv_titles()])
        for row in self.rows:
            cells = zip(self.columns, row, strict=True)
            writer.writerow([part for column, cell in cells for part in column.csv_cells(cell)])
        return text.getvalue()
