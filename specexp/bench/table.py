"""One set of rows, shown in the terminal, in markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specexp.bench.statistics import Speedup

if TYPE_CHECKING:
    import rich.table

Cell = str | float | int | Speedup | None


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: heading.
        digits: of numbers, after the point.
        unit: behind numbers; with ``%`` they are shares.
        interval: whether its cells are speedups, which CSV spreads over four columns.
    """

    title: str
    digits: int = 2
    unit: str = ""
    interval: bool = False

    @property
    def modelled(self) -> bool:
        """Whether the heading says already that its figures are modelled."""
        return "modelled" in self.title

    def show(self, cell: Cell) -> str:
        """A cell as a person reads it."""
        if cell is None:
            return "-"
        if isinstance(cell, Speedup):
            return cell.unlabelled if self.modelled else str(cell)
        if isinstance(cell, str):
            return cell
        if self.unit == "%":
            return f"{100 * cell:.{self.digits}f} %"
        if isinstance(cell, int):
            return f"{cell}{self.unit}"
        return f"{cell:.{self.digits}f}{self.unit}"

    def csv_titles(self) -> list[str]:
        """Headings in CSV."""
        return (
            [f"{self.title}{part}" for part in ("", " low", " high", " refused")]
            if self.interval
            else [self.title]
        )

    def csv_cells(self, cell: Cell) -> list[str | float | int]:
        """A cell in CSV: numbers unrounded."""
        if isinstance(cell, Speedup):
            if cell.refused:
                return ["", "", "", cell.refused]
            return [cell.ratio, cell.low, cell.high, ""] if cell.has_interval else [cell.ratio, "", "", ""]
        shown: str | float | int = "" if cell is None else cell
        return [shown, "", "", ""] if self.interval else [shown]


@dataclass
class Table:
    """Rows under columns, with a title and notes.

    Attributes:
        title: above.
        columns: headings.
        rows: one cell a column.
        notes: below.

    Example:
        >>> table = Table("Speed", [Column("arm"), Column("tokens/s", 0)], [["engine", 123.4]])
        >>> print(table.to_csv(), end="")
        arm,tokens/s
        engine,123.4
    """

    title: str
    columns: Sequence[Column]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def shown(self) -> list[list[str]]:
        """Cells as text."""
        return [
            [column.show(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows
        ]

    def records(self) -> list[dict[str, str | float | int | None]]:
        """Rows as mappings from heading to cell: numbers unrounded, speedups as text."""
        titles = [column.title for column in self.columns]
        cells = [
            [
                column.show(cell) if isinstance(cell, Speedup) else cell
                for column, cell in zip(self.columns, row, strict=True)
            ]
            for row in self.rows
        ]
        return [dict(zip(titles, row, strict=True)) for row in cells]

    def to_rich(self) -> rich.table.Table:
        """For the terminal."""
        from rich.markup import escape
        from rich.table import Table as RichTable

        table = RichTable(
            title=escape(self.title),
            title_justify="left",
            caption=escape("\n".join(self.notes)) or None,
            caption_justify="left",
        )
        for number, column in enumerate(self.columns):
            justify = "left" if number == 0 else "right"
            table.add_column(escape(column.title), justify=justify, overflow="fold")  # type: ignore[arg-type]
        for row in self.shown():
            table.add_row(*(escape(cell) for cell in row))
        return table

    def to_markdown(self) -> str:
        """For a README."""
        lines = [
            f"**{self.title}**",
            "",
            "| " + " | ".join(column.title for column in self.columns) + " |",
            "|---" + "|---:" * (len(self.columns) - 1) + "|",
            *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.shown()),
        ]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """For a program."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([title for column in self.columns for title in column.csv_titles()])
        for row in self.rows:
            cells = zip(self.columns, row, strict=True)
            writer.writerow([part for column, cell in cells for part in column.csv_cells(cell)])
        return text.getvalue()
