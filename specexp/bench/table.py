"""One set of rows, shown in the terminal, in markdown and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specexp.bench.statistics import Speedup

if TYPE_CHECKING:
    import pandas as pd
    import rich.table

Cell = str | float | int | Speedup | None
_HEAD = re.compile(r"(?P<title>.+?)(:\.(?P<digits>\d)(?P<unit>.*)|:(?P<interval>interval))?")


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: heading.
        digits: Digits of numbers after the point.
        unit: Behind numbers; with ``%`` they are shares.
        interval: Whether its cells are speedups, which CSV spreads over four columns.
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


def columns(heads: str) -> list[Column]:
    """Columns from one line: headings between bars, each with the style of its numbers behind a colon.

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
    """Rows under columns, with a title and notes.

    Attributes:
        title: Line above.
        columns: Headings.
        rows: Cells, one a column.
        notes: Lines below.

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

    @classmethod
    def of(
        cls,
        title: str,
        frame: pd.DataFrame,
        columns: Sequence[Column | str] | None = None,
        notes: Sequence[str] = (),
    ) -> Table:
        """A table of a DataFrame's rows; its index is left out, and missing values are empty cells.

        Args:
            title: Line above.
            frame: Cells, one column a heading, in order.
            columns: Headings; a text is one of default style. The frame's own names if None.
            notes: Lines below.

        Example:
            >>> import pandas as pd
            >>> frame = pd.DataFrame({"arm": ["engine"], "speed": [123.4]})
            >>> table = Table.of("Speed", frame, ["arm", Column("tokens/s", 0)])
            >>> table.shown()
            [['engine', '123']]
        """
        heads = [head if isinstance(head, Column) else Column(str(head)) for head in columns or frame.columns]
        if len(heads) != frame.shape[1]:
            raise ValueError(f"{title}: {len(heads)} headings were given for {frame.shape[1]} columns")
        rows = [[_plain(cell) for cell in row] for row in frame.itertuples(index=False, name=None)]
        return cls(title, heads, rows, list(notes))

    def add(self, cells: Mapping[str, Cell]) -> None:
        """Add a row; a column that is not named has an empty cell.

        Args:
            cells: Cells by heading.

        Raises:
            ValueError: A heading is none of the table's.
        """
        titles = [column.title for column in self.columns]
        for title in cells:
            if title not in titles:
                raise ValueError(f"{self.title}: no column is headed {title!r}")
        self.rows.append([cells.get(title) for title in titles])

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


def _plain(cell: Any) -> Cell:
    """A cell as Python has it: no NumPy scalars, None for what is missing."""
    value = cell.item() if hasattr(cell, "item") else cell
    return None if value is None or value != value else value  # only NaN and NaT differ from themselves
