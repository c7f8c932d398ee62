"""Presents a verification as tables, pictures and JSON."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
from matplotlib.figure import Figure

from specexp.base.messages import counted
from specexp.report.pictures import BLUE, GRAY, INK, ORANGE, new_figure
from specexp.report.publish import Report
from specexp.report.table import Cell, Table, columns
from specexp.verify.result import LosslessCheck, LosslessReport, as_json
from specexp.verify.statistics import POWER, SHARE
from specexp.verify.toy import MANNERS

_MOST_DIFFERENCES = 40
_CELLS = 24
Rows = list[tuple[str, LosslessCheck]]
"""Pairs of a composition's title and one of its tests."""


def report(found: LosslessReport) -> Report:
    """Return the report of a verification: its verdict, all non-empty tables, pictures, and all results as JSON."""
    from rich.text import Text

    line = verdict_line(found)
    rows = [(finding.title, check) for finding in found.findings for check in finding.checks]
    controls = [(f"{plain.title}, {plain.verifier}", check) for plain in found.plain for check in plain.checks]
    joints = [row for row in rows if row[1].name == "toy joint"]
    tables = {
        "verdicts": verdict_table(found),
        "checks": check_table([*rows, *controls], found),
        "differences": difference_table(found),
        "branches": branch_table(rows),
    }
    return Report(
        {name: table for name, table in tables.items() if table.rows or name == "verdicts"},
        {} if not joints else {"joint": joint_panels(found.name, joints)},
        {"report.json": json.dumps(found, indent=2, default=as_json) + "\n"},
        sentences=[Text(line, "bold" if found.passed else "bold red")],
        title=line,
        page="report",
    )


def verdict_line(found: LosslessReport) -> str:
    """Return the result in one line: the failures, or each verdict with the number of compositions that got it."""
    failed = [finding for finding in found.all if finding.failed]
    if failed:
        return f"FAILED: {', '.join(f'{finding.title} ({finding.verdict})' for finding in failed)}"
    verdicts = Counter(finding.verdict for finding in found.findings)
    return ". ".join(f"{counted(count, 'composition')}: {verdict}" for verdict, count in verdicts.items())


def verdict_table(found: LosslessReport) -> Table:
    """Return a table with one row per composition."""
    table = Table(f"Is it lossless? {found.name}", columns("composition | verifier | verdict"))
    for finding in (*found.findings, *(control for control in found.plain if control.failed)):
        table.rows.append([finding.title, finding.verifier, finding.verdict])
    table.notes = [f"{found.setting[0].upper()}{found.setting[1:]}."]
    if any(check.p_value is not None for finding in found.all for check in finding.checks):
        table.notes.append(
            f"An exact composition is rejected with a probability of at most {found.level:g}: half of it for the toy "
            "targets (Bonferroni over tests and looks, included in p), half for the configured models."
        )
    if found.skipped:
        table.notes.append(f"Not verified, because other programs decode them: {', '.join(found.skipped)}.")
    for finding in found.all:
        if finding.not_tested is not None:
            table.notes.append(f"{finding.title}: no toy test ({finding.not_tested}).")
        if finding.errors:
            table.notes.append(f"{finding.title}: {len(finding.errors)} errors, e.g. {finding.errors[0]}")
        for sequence, index, token, expected in [one for check in finding.checks for one in check.wrong][:1]:
            table.notes.append(
                f"{finding.title}: on a toy target, token {index} of continuation {sequence} is {token}, expected "
                f"{expected}."
            )
    return table


def check_table(rows: Rows, found: LosslessReport) -> Table:
    """Return a table with one row per test: its samples, its decision, and the deviation it could have detected."""
    heads = "composition | test | compared or counted | wrong | near ties | p | least p of | finds:.4 | decision"
    table = Table("The tests", columns(heads))
    for title, check in rows:
        outcomes, p = check.outcomes, check.p_value
        # Rounding must not show a small p-value as 0.
        shown = None if p is None else "<1e-4" if p < 1e-4 else f"{p:.4f}"
        counts = (f"{check.samples:,}", outcomes.get("wrong"), outcomes.get("near ties"))
        table.rows.append([title, check.name, *counts, shown, check.worst, check.finds, check.decision])
    notes = {
        "toy equality": f"finds: the share of wrong tokens that is found with {100 * POWER:.0f} % probability.",
        "toy joint": "tests on targets with known probabilities. They count three consecutive tokens, first tokens of "
        "three consecutive steps, tokens by the preceding token and by position in a step, and how often the first "
        "ranked candidate is the output. On the toy 'open' several tokens are likely and drafts are rejected at every "
        "depth. On 'sure' one token is likely and deep drafts are accepted. A deterministic verifier is tested without "
        f"drafts. The samples suffice to find a total variation of {found.total_variation:g} with Pearson's chi-square "
        "test. Half of them suffice if they already exclude it. finds: a total variation over the cells of a "
        f"distribution, with rare cells pooled, that is found with {100 * POWER:.0f} % probability.",
        "first tokens": "counts of the most likely beginnings on the configured models (all others pooled), against "
        "the target's own probabilities. All prompts form one test at level "
        f"{found.level * SHARE:g}. Plain decoding is the control.",
    }
    names = {check.name for _, check in rows}
    table.notes = [f"{name}: {note}" for name, note in notes.items() if name in names]
    return table


def difference_table(found: LosslessReport) -> Table:
    """Return a table of the positions where outputs differ from plain decoding, with the target's gap at each."""
    heads = "composition | prompt | sample | token | gap:.4 | excused"
    table = Table("Differences from plain decoding, near ties included", columns(heads))
    rows: list[list[Cell]] = []
    for finding in found.findings:
        for one in finding.differences:
            place = [finding.title, *(one[key] for key in ("prompt_id", "sample", "index", "gap"))]
            rows.append([*place, "near tie" if one["near_tie"] else "NO"])
    table.rows += rows[:_MOST_DIFFERENCES]
    table.notes = [
        "gap: difference of the two largest values of logits + T * noise in plain decoding, or distance to the top-k / "
        "top-p cut. A gap within the rounding of a 16-bit dtype is excused; in float32 none is."
    ]
    if len(rows) > _MOST_DIFFERENCES:
        table.notes.append(f"{len(rows) - _MOST_DIFFERENCES} more differences are in report.json.")
    return table


def branch_table(rows: Rows) -> Table:
    """Return a table of how the steps of each test ended."""
    heads = "composition | test | tokens | steps | tree rows | rejections | how steps ended | never"
    table = Table("How steps ended", columns(heads))
    for title, check in rows:
        if (steps := check.branches) is not None:
            counts = (steps.tokens, steps.steps, steps.rows, sum(steps.rejected.values()))
            cells = (f"{count:,}" for count in counts)
            table.rows.append([title, check.name, *cells, str(steps), "; ".join(steps.never) or None])
    table.notes = [
        "rejected at depth d: d - 1 tokens were accepted, and every drafted token after them was rejected. never: "
        "branches of the verifier that no step took, so they were not tested."
    ]
    return table


def joint_panels(name: str, rows: Rows) -> Figure:
    """Draw the exact probabilities of the most likely triples as bars, and observed shares with error bars (2 s.e.)."""
    tests = [(*row, manner) for row in rows for manner in MANNERS]
    across = min(4, len(tests))
    down = math.ceil(len(tests) / across)
    title = f"Three tokens on the toy targets: {name}"
    figure, grid = new_figure(3.6 * across + 0.6, 0.8 + 2.1 * down, title, down, across)
    cells = [ax for row in grid for ax in row]
    for ax, (arm, check, manner) in zip(cells, tests, strict=False):
        fit = check.fits[f"{manner}: tokens"]
        exact, share = (part[:_CELLS] / fit.samples for part in (fit.expected, fit.observed))
        ax.bar(np.arange(exact.size), exact, color=GRAY, width=0.8)
        error = 2 * np.sqrt(exact * np.maximum(1 - exact, 0.0) / fit.samples)
        color = BLUE if check.passed else ORANGE
        ax.errorbar(np.arange(exact.size), share, yerr=error, fmt=".", color=color, ms=4, lw=0.9)
        ax.set_xticks([])
        ax.set_title(f"{arm}, {manner}", fontsize=8, color=INK)
    for ax in cells[len(tests) :]:
        ax.set_axis_off()
    for row in grid:
        row[0].set_ylabel("probability", fontsize=8)
    return figure
