"""Tables that can be shown in the terminal and written as Markdown or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
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
    """A column's heading and the style of its cells."""

    title: str
    digits: int = 2  # digits after the decimal point
    unit: str = ""  # text after each number; ``%`` shows shares as percentages
    interval: bool = False  # whether its cells are speedups, which take up four columns in CSV

    def show(self, cell: Cell) -> str:
        """Return the formatted text of a cell."""
        if cell is None:
            return "-"
        if isinstance(cell, Speedup):
            return cell.unlabeled if "modelled" in self.title else str(cell)
        if isinstance(cell, str):
            return cell
        if self.unit == "%":
            return f"{100 * cell:.{self.digits}f} %"
        return f"{cell}{self.unit}" if isinstance(cell, int) else f"{cell:.{self.digits}f}{self.unit}"

    def csv_cells(self, cell: Cell) -> list[str | float | int]:
        """Return a cell's values for CSV: an unrounded number, or a speedup's ratio, low, high and refusal."""
        if isinstance(cell, Speedup):
            ends = [cell.low, cell.high] if cell.has_interval else ["", ""]
            return ["", "", "", cell.refused] if cell.refused else [cell.ratio, *ends, ""]
        return ["" if cell is None else cell, *[""] * (3 * self.interval)]


def columns(heads: str) -> list[Column]:
    """Parse headings separated by vertical bars into columns. A heading may end with a colon and a style.

    The styles are ``.1`` for one digit after the decimal point, ``.1%`` for a share, ``.2 ms`` and ``.2x`` for two
    digits and a unit, and ``interval`` for a speedup. The default is two digits.

    Example:
        >>> [column.digits for column in columns("arm | tokens/step | step:.3 ms")]
        [2, 2, 3]
    """
    styles = [match for head in heads.split("|") if (match := _HEAD.fullmatch(head.strip()))]
    return [
        Column(style["title"], int(style["digits"] or 2), style["unit"] or "", style["interval"] is not None)
        for style in styles
    ]


@dataclass
class Table:
    """A table with a title above and notes below.

    Example:
        >>> print(Table("Speed", columns("arm | tokens/s:.0"), [["plain", 123.4]]).to_csv(), end="")
        arm,tokens/s
        plain,123.4
    """

    title: str
    columns: Sequence[Column]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def titles(self) -> list[str]:
        """The headings of all columns."""
        return [column.title for column in self.columns]

    def add(self, cells: Mapping[str, Cell]) -> None:
        """Add a row from cells keyed by heading; other cells stay empty. Raises ValueError for unknown headings."""
        if unknown := [title for title in cells if title not in self.titles]:
            raise ValueError(f"{self.title}: there is no column {unknown[0]!r}")
        self.rows.append([cells.get(title) for title in self.titles])

    @property
    def _marks(self) -> dict[str, str]:
        """The text of cells with a refusal that several cells have, by its reason, which is a note."""
        found = Counter(cell.refused for row in self.rows for cell in row if isinstance(cell, Speedup) and cell.refused)
        repeated = [reason for reason, count in found.items() if count > 1]
        numbers = [""] if len(repeated) == 1 else [f" [{number}]" for number in range(1, len(repeated) + 1)]
        return {reason: f"refused{number}" for reason, number in zip(repeated, numbers, strict=True)}

    def shown(self) -> list[list[str]]:
        """Return all cells as text. A refusal that several cells have is shortened; :meth:`all_notes` explains it."""
        marks = self._marks

        def text(column: Column, cell: Cell) -> str:
            mark = marks.get(cell.refused or "") if isinstance(cell, Speedup) else None
            return mark or column.show(cell)

        return [[text(column, cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]

    def all_notes(self) -> list[str]:
        """Return the notes, and the reasons of shortened refusals."""
        return [*self.notes, *(f"{mark}: {reason}" for reason, mark in self._marks.items())]

    def records(self) -> list[dict[str, str | float | int | None]]:
        """Return each row as a mapping from heading to cell. Numbers are not rounded; speedups become text."""
        return [
            {
                column.title: column.show(cell) if isinstance(cell, Speedup) else cell
                for column, cell in zip(self.columns, row, strict=True)
            }
            for row in self.rows
        ]

    def to_rich(self) -> rich.table.Table:
        """Return the table as a rich table for the terminal."""
        from rich.markup import escape
        from rich.table import Table as RichTable

        notes = escape("\n".join(self.all_notes())) or None
        look = {"title_justify": "left", "caption_justify": "left"}
        table = RichTable(title=escape(self.title), caption=notes, **look)  # type: ignore[arg-type]
        for number, title in enumerate(self.titles):
            table.add_column(escape(title), justify="right" if number else "left", overflow="fold")
        for row in self.shown():
            table.add_row(*map(escape, row))
        return table

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        rows = [[cell.replace("|", "\\|") for cell in row] for row in self.shown()]
        first, *lines = (f"| {' | '.join(row)} |" for row in [self.titles, *rows])
        rule = "|---" + "|---:" * (len(self.columns) - 1) + "|"
        notes = [f"- {note}" for note in self.all_notes()]
        below = ["", *notes] if notes else []
        return "\n".join([f"**{self.title}**", "", first, rule, *lines, *below]) + "\n"

    def to_csv(self) -> str:
        """Return the table as CSV, with unrounded numbers."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        ends = {False: ("",), True: ("", " low", " high", " refused")}
        writer.writerow(f"{column.title}{end}" for column in self.columns for end in ends[column.interval])
        for row in self.rows:
            cells = zip(self.columns, row, strict=True)
            writer.writerow(part for column, cell in cells for part in column.csv_cells(cell))
        return text.getvalue()
