"""A picture of a Q-table: its decisions, and the visits of each state."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from specexp.controllers.q_table import CONTINUE, STOP, QTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_BLOCKS = 4


def draw_table(table: QTable, title: str) -> Figure:
    """Draw Q(CONTINUE) - Q(STOP) and visits by bins; of a table with extra signals, the most visited blocks."""
    from matplotlib.colors import LogNorm, TwoSlopeNorm
    from matplotlib.figure import Figure

    values, visits = np.array(table.values), np.array(table.visits)
    size = table.block_size
    starts = sorted(range(0, table.rows, size), key=lambda row: -visits[row : row + size].sum())[:MAX_BLOCKS]
    cost = _labels(table.cost_bins, "{:g}")
    confidence = _labels(table.confidence_bins, "{:g}")
    shape = (len(cost), len(confidence))
    figure = Figure(figsize=(13, 0.6 + 4.4 * len(starts)), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(starts), 2, squeeze=False)
    for (decides, counts), start in zip(axes, starts, strict=True):
        cells = slice(start + 1, start + size)
        seen = visits[cells].sum(axis=1).reshape(shape)
        gain = (values[cells, CONTINUE] - values[cells, STOP]).reshape(shape)
        gain = np.ma.masked_where(seen == 0, gain)
        limit = max(float(np.abs(gain).max()) if gain.count() else 0.0, 1e-9)
        image = decides.imshow(
            gain.T, cmap="PuOr", norm=TwoSlopeNorm(0.0, -limit, limit), origin="lower", aspect="auto"
        )
        figure.colorbar(image, ax=decides, label="Q(CONTINUE) - Q(STOP)")
        begins = values[start, CONTINUE] - values[start, STOP]
        what = "drafts" if begins >= 0 else "stays off"
        decides.set_title(f"a step {what} (CONTINUE worth {begins:+.2f}); ■ CONTINUE, □ STOP", fontsize=10)
        for column, row in zip(*np.nonzero(seen), strict=True):
            mark = "■" if gain[column, row] >= 0 else "□"
            decides.text(column, row, mark, ha="center", va="center", fontsize=7, color="0.25")
        shown = np.ma.masked_where(seen == 0, seen)
        image = counts.imshow(
            shown.T, cmap="viridis", norm=LogNorm(1, max(int(seen.max()), 2)), origin="lower", aspect="auto"
        )
        figure.colorbar(image, ax=counts, label="visits")
        counts.set_title("how often it was learned", fontsize=10)
        for axis in (decides, counts):
            axis.set_xticks(range(shape[0]), cost, rotation=45, ha="right")
            axis.set_yticks(range(shape[1]), confidence)
            axis.set_xlabel("draft passes spent")
            axis.set_ylabel("product of confidences")
    return figure


def _labels(edges: list[float], form: str) -> list[str]:
    if not edges:
        return ["all"]
    shown = [form.format(edge) for edge in edges]
    between = [f"{low} to {high}" for low, high in pairwise(shown)]
    return [f"< {shown[0]}", *between, f"≥ {shown[-1]}"]
