"""One style for all pictures: colours, canvas, axes, and how a figure becomes a file."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specexp.artifacts.atomic_write import atomic_write

BLUE, GREY, ORANGE, INK = "#33658a", "#b4bec6", "#d1782f", "#22303c"
GREEN, VIOLET, SAND = "#6b9080", "#8d6a9f", "#e9b872"
CURVE_COLOURS = (BLUE, ORANGE, GREEN, VIOLET)
PHASE_COLOURS = {
    "target": BLUE,
    "draft": ORANGE,
    "build": SAND,
    "verify": GREEN,
    "commit": "#a4c3b2",
    "update": VIOLET,
}
"""The colour of each phase of a step, in the order in which bars stack them."""
CHARACTERS_PER_INCH = 12
"""Characters of a title that an inch holds."""
DPI = 130


def bare_figure(width: float, height: float, *, dpi: int = DPI, layout: Any = None) -> Figure:
    """A figure of matplotlib's Agg canvas, apart from pyplot, without axes or title.

    Args:
        width: Width in inches.
        height: Height in inches.
        dpi: Dots per inch of the saved picture.
        layout: Layout engine, or its name; None leaves every place to the caller.
    """
    figure = Figure(figsize=(width, height), dpi=dpi, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def new_figure(
    width: float,
    height: float,
    title: str = "",
    rows: int = 1,
    columns: int = 1,
    *,
    dpi: int = DPI,
    **subplots: Any,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a title above a grid of plain axes, laid out so that nothing overlaps.

    Args:
        width: Width in inches.
        height: Height in inches.
        title: Text above; a line too long for the width is broken.
        rows: Rows of axes.
        columns: Columns of axes.
        dpi: Dots per inch of the saved picture.
        subplots: Further arguments of ``Figure.subplots``, such as ``sharey="row"`` or ``width_ratios``.

    Returns:
        The figure, and its axes by row and column.

    Example:
        >>> figure, [[left, right]] = new_figure(8, 4, "Two panels", 1, 2, sharey=True)
        >>> bars = left.bar([0, 1], [3, 4], color=BLUE)
        >>> png(figure)[:4]
        b'\\x89PNG'
    """
    figure = bare_figure(width, height, dpi=dpi, layout="constrained")
    if title:
        broken = (fill(line, int(CHARACTERS_PER_INCH * width)) for line in title.split("\n"))
        figure.suptitle("\n".join(broken), fontsize=11, color=INK)
    grid: list[list[Axes]] = figure.subplots(rows, columns, squeeze=False, **subplots).tolist()
    for row in grid:
        for axes in row:
            plain(axes)
    return figure, grid


def plain(axes: Axes, label_size: float = 8) -> None:
    """Take away the frame's upper and right line, and set small dark tick labels.

    Args:
        axes: Axes to change.
        label_size: Size of the tick labels in points.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=label_size, colors=INK)


def rule(axes: Axes, axis: Literal["x", "y", "both"] = "y") -> None:
    """Draw faint lines behind everything else.

    Args:
        axes: Axes to change.
        axis: Which ticks have lines.
    """
    axes.grid(axis=axis, color="#e3e8ec", lw=0.7)
    axes.set_axisbelow(True)


def whole_numbers(axes: Axes) -> None:
    """Set ticks at whole numbers of the y axis only."""
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Name rows at 0, 1, 2, ... from above to below."""
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.5, -0.5)


def legend_below(figure: Figure, columns: int, *given: Any) -> None:
    """A legend below all axes.

    Args:
        figure: The figure.
        columns: Entries beside each other.
        given: Handles and labels; those of all axes if left out.
    """
    figure.legend(*given, loc="outside lower center", ncols=max(columns, 1), fontsize=8, frameon=False)


def png(figure: Figure) -> bytes:
    """The picture as the bytes of a PNG file."""
    content = BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, whole or not at all; returns the path.

    Raises:
        OSError: The file cannot be written.
    """
    atomic_write(Path(path), png(figure))
    return Path(path)
