"""Pictures of a verification: equal outputs, observed and exact probabilities, p-values beside the level."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specexp.bench.pictures import BLUE, GREY, INK, ORANGE, new_figure
from specexp.verify.first_tokens import first_p_value
from specexp.verify.joint import ToyLawTest
from specexp.verify.result import Finding, LosslessReport

_CELLS = 24
_LEAST = 1e-12


def figures(found: LosslessReport) -> dict[str, Figure]:
    """Pictures by file name; only what there is something to show of."""
    shown = {}
    if any(finding.equality is not None for finding in found.findings):
        shown["equality"] = equality_bars(found)
    if any(finding.joint is not None for finding in found.findings):
        shown["joint"] = joint_panels(found)
    if any(_p_values(finding) for finding in found.all):
        shown["p_values"] = p_values(found)
    return shown


def equality_bars(found: LosslessReport) -> Figure:
    """Outputs equal to plain decoding's, parted at a near tie, and different, one bar a composition."""
    rows = [(finding.title, finding.equality) for finding in found.findings if finding.equality is not None]
    figure, [[ax]] = new_figure(
        7.5, 1.4 + 0.36 * max(len(rows), 2), f"Outputs beside plain decoding's: {found.name}"
    )
    for place, (_, equality) in enumerate(rows):
        start = 0
        for count, colour, label in (
            (equality.equal, BLUE, "equal"),
            (equality.near_ties, GREY, "part at a near tie"),
            (equality.wrong, ORANGE, "differ"),
        ):
            ax.barh(place, count, left=start, color=colour, height=0.62, label=None if place else label)
            start += count
    ax.set_yticks(range(len(rows)), [title for title, _ in rows])
    ax.invert_yaxis()
    ax.set_xlabel("outputs", fontsize=9)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def joint_panels(found: LosslessReport) -> Figure:
    """The likeliest triples of tokens on the toy targets: observed shares with error bars on exact probabilities."""
    tests = [(finding, toy) for finding in found.findings if finding.joint for toy in finding.joint.toys]
    columns = min(4, len(tests))
    rows = math.ceil(len(tests) / columns)
    figure, grid = new_figure(
        3.6 * columns + 0.6, 0.8 + 2.1 * rows, f"Three tokens on the toy targets: {found.name}", rows, columns
    )
    cells = [ax for row in grid for ax in row]
    for ax, (finding, toy) in zip(cells, tests, strict=False):
        _joint_panel(ax, finding, toy)
    for ax in cells[len(tests) :]:
        ax.set_axis_off()
    for row in grid:
        row[0].set_ylabel("probability", fontsize=8)
    return figure


def _joint_panel(ax: Axes, finding: Finding, toy: ToyLawTest) -> None:
    fit = toy.fits["tokens"]
    exact, share = (part[:_CELLS] / fit.samples for part in (fit.expected, fit.observed))
    places = np.arange(exact.size)
    ax.bar(places, exact, color=GREY, width=0.8)
    error = 2 * np.sqrt(exact * np.maximum(1 - exact, 0.0) / fit.samples)
    colour = ORANGE if toy.decision == "found" else BLUE
    ax.errorbar(places, share, yerr=error, fmt=".", color=colour, ms=4, lw=0.9)
    ax.set_xticks([])
    ax.set_title(f"{finding.title}, {toy.manner}: TV below {toy.below:.3f}", fontsize=8, color=INK)


def p_values(found: LosslessReport) -> Figure:
    """Every p-value of every composition on a logarithmic axis, as a share of the level of its test."""
    rows = [(finding, _p_values(finding)) for finding in found.all]
    rows = [(finding, values) for finding, values in rows if values]
    figure, [[ax]] = new_figure(7.5, 1.4 + 0.36 * max(len(rows), 2), f"p-values: {found.name}")
    for place, (finding, values) in enumerate(rows):
        colour = ORANGE if finding.deviates else BLUE
        ax.scatter(
            [max(value, _LEAST) for value in values], [place] * len(values), s=18, color=colour, alpha=0.7
        )
    ax.axvline(1.0, color=INK, lw=0.9, ls=":")
    ax.set_xscale("log")
    ax.set_yticks(range(len(rows)), [finding.title for finding, _ in rows], fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel(f"p-value / level of the test (refused left of 1; {_LEAST:g} stands for less)", fontsize=9)
    return figure


def _p_values(finding: Finding) -> list[float]:
    toys = () if finding.joint is None else finding.joint.toys
    values = [fit.p_value / toy.least for toy in toys for fit in toy.fits.values()]
    if finding.first_tokens:
        values.append(first_p_value(finding.first_tokens) / finding.level)
    return values
