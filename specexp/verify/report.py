"""A verification as tables, pictures and JSON."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specexp.bench.pictures import BLUE, GREY, INK, ORANGE, new_figure
from specexp.bench.publish import Report
from specexp.bench.table import Cell, Table, columns
from specexp.verify.result import Finding, LosslessCheck, LosslessReport
from specexp.verify.statistics import POWER, SHARE, p_text
from specexp.verify.toy import MANNERS

_MOST_DIFFERENCES = 40
_CELLS = 24
_LEAST = 1e-12


def report(found: LosslessReport) -> Report:
    """The whole verification: its verdict, all tables that have a row, pictures, and everything as JSON."""
    from rich.text import Text

    line = verdict_line(found)
    tables = {
        "verdicts": verdict_table(found),
        "checks": check_table(found),
        "differences": difference_table(found),
        "branches": branch_table(found),
    }
    return Report(
        {name: table for name, table in tables.items() if table.rows or name == "verdicts"},
        figures(found),
        {"report.json": json.dumps(found.to_dict(), indent=2) + "\n"},
        sentences=[Text(line, "bold" if found.passed else "bold red")],
        title=line,
        page="report",
    )


def verdict_line(found: LosslessReport) -> str:
    """The whole result in a sentence, with the deviation that could have been found."""
    failed = [finding for finding in found.all if finding.failed]
    if failed:
        return f"FAILED: {', '.join(f'{finding.title} ({finding.verdict})' for finding in failed)}"
    verdicts = Counter(finding.verdict for finding in found.findings)
    return ". ".join(
        f"{count} {'composition' if count == 1 else 'compositions'}: {verdict}"
        for verdict, count in verdicts.items()
    )


def verdict_table(found: LosslessReport) -> Table:
    """One row for each composition."""
    table = Table(f"Is it lossless? {found.name}", columns("composition | verifier | verdict"))
    for finding in (*found.findings, *(control for control in found.plain if control.failed)):
        table.rows.append([finding.title, finding.verifier, finding.verdict])
    table.notes = [
        f"{found.setting[0].upper()}{found.setting[1:]}.",
        f"A composition that is exact is refused with a probability of {found.level:g} at most: half of it is for the "
        "toy targets (Bonferroni over tests; p is of all of them together), half for the configured models.",
    ]
    if found.skipped:
        table.notes.append(f"Not verified, for they are not our loops: {', '.join(found.skipped)}.")
    for finding in found.all:
        if finding.not_tested is not None:
            table.notes.append(f"{finding.title}: no toy test ({finding.not_tested}).")
        if finding.errors:
            table.notes.append(f"{finding.title}: {len(finding.errors)} errors, e.g. {finding.errors[0]}")
        for sequence, index, token, expected in [one for check in finding.checks for one in check.wrong][:1]:
            table.notes.append(
                f"{finding.title}: on a toy target, token {index} of continuation {sequence} was {token} instead of "
                f"{expected}."
            )
    return table


def check_table(found: LosslessReport) -> Table:
    """One row for each test: what it compared or counted, its decision, and what it could have found."""
    heads = (
        "composition | test | compared or counted | wrong | near ties | p | least p of | finds:.4 | decision"
    )
    table = Table("The tests", columns(heads))
    titled = [(finding.title, finding) for finding in found.findings]
    titled += [(f"{finding.title}, {finding.verifier}", finding) for finding in found.plain]
    for title, check in [(title, check) for title, finding in titled for check in finding.checks]:
        outcomes = check.outcomes
        table.rows.append(
            [
                *(title, check.name, f"{check.samples:,}", outcomes.get("wrong"), outcomes.get("near ties")),
                *(p_text(check.p_value), check.worst, check.finds, check.decision),
            ]
        )
    table.notes = [
        f"finds: a greater deviation, whatever its form, is found with {100 * POWER:.0f} % probability: a share of "
        "wrong tokens (toy equality), or a total variation over the cells of a joint, rare ones pooled.",
        "toy joint: three consecutive tokens of targets with known probabilities, against their product; first tokens "
        "of three consecutive steps; tokens by the one before; by place in a step; how often the first candidate "
        "comes, where nothing is drawn. open: several tokens are likely, and the draft is right, too sure, opposed, "
        "elsewhere or half right. sure: one token mostly comes. As many samples as find a total variation of "
        f"{found.total_variation:g} by Pearson's chi-square. A deterministic verifier's law is tested without drafts.",
        "first tokens: the likeliest beginnings on the configured models and all others together, against the "
        f"target's own probabilities; the prompts are tested together at {found.level * SHARE:g}, and plain decoding "
        "is the control.",
    ]
    return table


def difference_table(found: LosslessReport) -> Table:
    """Where outputs differ from plain decoding's, and how close the target itself came to the other token."""
    heads = "composition | prompt | sample | token | gap:.4 | excused"
    table = Table("Differences from plain decoding, near ties included", columns(heads))
    rows: list[list[Cell]] = [
        [
            finding.title,
            record.prompt_id,
            record.sample,
            one.index,
            one.gap,
            "near tie" if one.near_tie else "NO",
        ]
        for finding in found.findings
        for record in finding.differences
        if (one := record.difference) is not None
    ]
    table.rows += rows[:_MOST_DIFFERENCES]
    table.notes = [
        "gap: distance of the two best values of logits + T * noise in plain decoding, or to the top-k / top-p cut; "
        "excused within the rounding of a 16-bit dtype, never in float32."
    ]
    if len(rows) > _MOST_DIFFERENCES:
        table.notes.append(f"{len(rows) - _MOST_DIFFERENCES} more in report.json.")
    return table


def branch_table(found: LosslessReport) -> Table:
    """How the steps of every test ended."""
    heads = "composition | test | tokens | steps | tree rows | rejections | how steps ended | never"
    table = Table("What was exercised", columns(heads))
    for finding in found.findings:
        for check in finding.checks:
            steps = check.exercised
            if steps is not None:
                table.rows.append(
                    [
                        *(
                            finding.title,
                            check.name,
                            f"{steps.tokens:,}",
                            f"{steps.steps:,}",
                            f"{steps.rows:,}",
                        ),
                        *(f"{sum(steps.rejected.values()):,}", str(steps), "; ".join(steps.never) or None),
                    ]
                )
    table.notes = [
        "rejected at depth d: every drafted token of that depth behind the accepted ones was refused; at depth 1 none "
        "was accepted. never: branches of the verifier that no step took, of which nothing is known."
    ]
    return table


def figures(found: LosslessReport) -> dict[str, Figure]:
    """Pictures by file name, where there is something to show."""
    named = [(finding, check) for finding in found.findings for check in finding.checks]
    pictures = {
        "equality": (equality_bars, [one for one in named if one[1].name == "token equality"]),
        "joint": (joint_panels, [one for one in named if one[1].name == "toy joint"]),
        "p_values": (p_values, [one for one in named if one[1].p_value is not None]),
    }
    return {name: draw(found.name, rows) for name, (draw, rows) in pictures.items() if rows}


def equality_bars(name: str, rows: list[tuple[Finding, LosslessCheck]]) -> Figure:
    """Outputs equal to plain decoding's, different at a near tie, and different elsewhere."""
    figure, ax = _bars(f"Outputs beside plain decoding's: {name}", rows)
    for place, (_, check) in enumerate(rows):
        start = 0
        for (label, count), colour in zip(check.outcomes.items(), (BLUE, GREY, ORANGE), strict=True):
            ax.barh(place, count, left=start, color=colour, height=0.62, label=None if place else label)
            start += count
    ax.set_xlabel("outputs", fontsize=9)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def joint_panels(name: str, rows: list[tuple[Finding, LosslessCheck]]) -> Figure:
    """The likeliest triples of tokens on the toy targets: observed shares with error bars on exact probabilities."""
    tests = [(*row, manner) for row in rows for manner in MANNERS]
    across = min(4, len(tests))
    down = math.ceil(len(tests) / across)
    figure, grid = new_figure(
        3.6 * across + 0.6, 0.8 + 2.1 * down, f"Three tokens on the toy targets: {name}", down, across
    )
    cells = [ax for row in grid for ax in row]
    for ax, (finding, check, manner) in zip(cells, tests, strict=False):
        fit = check.fits[f"{manner}: tokens"]
        exact, share = (part[:_CELLS] / fit.samples for part in (fit.expected, fit.observed))
        ax.bar(np.arange(exact.size), exact, color=GREY, width=0.8)
        error = 2 * np.sqrt(exact * np.maximum(1 - exact, 0.0) / fit.samples)
        colour = BLUE if check.passed else ORANGE
        ax.errorbar(np.arange(exact.size), share, yerr=error, fmt=".", color=colour, ms=4, lw=0.9)
        ax.set_xticks([])
        ax.set_title(f"{finding.title}, {manner}", fontsize=8, color=INK)
    for ax in cells[len(tests) :]:
        ax.set_axis_off()
    for row in grid:
        row[0].set_ylabel("probability", fontsize=8)
    return figure


def p_values(name: str, rows: list[tuple[Finding, LosslessCheck]]) -> Figure:
    """The p-value of every test on a logarithmic axis, as a share of its level."""
    figure, ax = _bars(f"p-values: {name}", rows)
    for place, (_, check) in enumerate(rows):
        share = (check.p_value or 0.0) / (check.level or 1.0)
        ax.scatter(max(share, _LEAST), place, s=18, color=BLUE if check.passed else ORANGE, alpha=0.7)
    ax.axvline(1.0, color=INK, lw=0.9, ls=":")
    ax.set_xscale("log")
    ax.set_xlabel(f"p-value / level of the test (refused left of 1; {_LEAST:g} stands for less)", fontsize=9)
    return figure


def _bars(title: str, rows: list[tuple[Finding, LosslessCheck]]) -> tuple[Figure, Axes]:
    """A figure with one line for each test, the first on top."""
    figure, [[ax]] = new_figure(7.5, 1.4 + 0.36 * max(len(rows), 2), title)
    ax.set_yticks(range(len(rows)), [f"{finding.title}: {check.name}" for finding, check in rows], fontsize=8)
    ax.invert_yaxis()
    return figure, ax
