"""Goodput against the node budget, from a yardstick: where more nodes stop paying, and where a searched tree lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from specexp.bench.pictures import INK, bare_figure, plain
from specexp.bench.tree_picture import PLATE
from specexp.core.messages import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from specexp.replay.play.yardstick import BudgetPoint, Yardstick

CURVE = "#3a6ea5"
KNEE = "#8a97a3"
MOST_HIT = "#e9a03b"
SEQUOIA = "#6b9080"
WINNER = "#c8553d"


@dataclass(frozen=True)
class SearchedTree:
    """A tree that a search found.

    Attributes:
        name: Name in the legend.
        nodes: Nodes of the tree, the root not counted.
        goodput: Tokens per second, replayed on the yardstick's turns.
    """

    name: str
    nodes: int
    goodput: float


def draw_goodput(found: Yardstick, searched: SearchedTree | None = None) -> Figure:
    """Draw the curve, its knee, both yardstick trees, plain decoding, and a searched tree; the heading has the profile.

    Args:
        found: The yardstick.
        searched: The tree that is held against it.
    """
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    figure = bare_figure(8.4, 4.8, dpi=150, layout=layout)
    axes = figure.subplots()
    axes.set_facecolor("white")  # whatever style another picture left
    sizes = [point.nodes for point in found.curve]
    axes.plot(
        sizes,
        [point.goodput for point in found.curve],
        color=CURVE,
        lw=0,
        marker="o",
        ms=3.2,
        alpha=0.45,
        label="most-hit tree of this size",
    )
    axes.step(
        sizes,
        [point.goodput for point in found.frontier],
        where="post",
        color=CURVE,
        lw=1.8,
        label="best of at most so many nodes",
    )
    for tree, marker, colour in ((found.most_hit, "D", MOST_HIT), (found.sequoia, "^", SEQUOIA)):
        what = f"yardstick, {tree.family}: {counted(tree.nodes, 'node')}, depth {tree.depth}"
        _mark(axes, tree, marker, colour, f"{what}, {tree.goodput:.4g} tokens/s")
    if searched is not None:
        what = f"{searched.name}: {counted(searched.nodes, 'node')}, {searched.goodput:.4g} tokens/s"
        share = 100 * found.share(searched.goodput)
        _mark(axes, searched, "*", WINNER, f"{what}, {share:.1f} % of the yardstick")
    axes.set_xlim(0, 1.03 * max(sizes[-1], searched.nodes if searched else 0, 4))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _mark_plain(axes, found)
    _mark_knee(axes, found)
    axes.set_xlabel("nodes of the tree (budget)", fontsize=9, color=INK)
    axes.set_ylabel("tokens/s, replayed", fontsize=9, color=INK)
    axes.set_title("Goodput against budget\n", fontsize=12, color=INK, loc="left", weight="bold")
    axes.text(0, 1.015, found.profile, transform=axes.transAxes, fontsize=8, color=INK)
    axes.grid(axis="y", lw=0.4, alpha=0.5)
    plain(axes)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower left", fontsize=8, frameon=False, ncols=1
    )
    return figure


def _mark(axes: Axes, tree: BudgetPoint | SearchedTree, marker: str, colour: str, label: str) -> None:
    size = 14 if marker == "*" else 8
    style: dict[str, Any] = {"color": colour, "mec": "white", "mew": 0.8, "lw": 0, "zorder": 4}
    axes.plot(tree.nodes, tree.goodput, marker=marker, ms=size, label=label, **style)


def _mark_knee(axes: Axes, found: Yardstick) -> None:
    knee = found.knee
    axes.axvline(knee.nodes, color=KNEE, lw=1.0, ls=":", zorder=1)
    right = knee.nodes < 0.7 * axes.get_xlim()[1]
    low, high = axes.get_ylim()
    plain = (found.plain_goodput - low) / (high - low)  # as a share of the height
    axes.annotate(
        f"knee: {counted(knee.nodes, 'node')},\nwithin 1 % of the highest",
        (knee.nodes, 0.24 if abs(plain - 0.24) > 0.14 else 0.52),
        xycoords=("data", "axes fraction"),
        xytext=(5 if right else -5, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        fontsize=8,
        color=INK,
        bbox=PLATE,
    )


def _mark_plain(axes: Axes, found: Yardstick) -> None:
    """A line; the axis begins a little below what is lowest."""
    plain = found.plain_goodput
    drawn = axes.dataLim.intervaly.tolist()
    low, high = min(plain, *drawn), max(plain, *drawn)
    axes.set_ylim(low - 0.12 * (high - low), high + 0.1 * (high - low))
    axes.axhline(plain, color=INK, lw=1.0, ls="--", zorder=1)
    axes.annotate(
        f"plain decoding: {plain:.4g} tokens/s",
        (1.0, plain),
        xycoords=("axes fraction", "data"),
        xytext=(-6, 3),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=INK,
        bbox=PLATE,
    )
