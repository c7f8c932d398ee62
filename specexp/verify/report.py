"""The tables of a verification."""

from __future__ import annotations

import json

from specexp.bench.publish import Report
from specexp.bench.table import Cell, Column, Table
from specexp.verify.result import Finding, LosslessReport
from specexp.verify.statistics import POWER

_MOST_DIFFERENCES = 40


def report(found: LosslessReport) -> Report:
    """The whole verification: its line, all tables that have a row, pictures, and everything as JSON."""
    from rich.text import Text

    from specexp.verify.figures import figures

    line = verdict_line(found)
    tables = {
        "verdicts": verdict_table(found),
        "differences": difference_table(found),
        "toy": toy_table(found),
        "first_tokens": first_token_table(found),
    }
    return Report(
        {name: table for name, table in tables.items() if table.rows or name == "verdicts"},
        figures(found),
        {"report.json": json.dumps(found.to_dict(), indent=2) + "\n"},
        sentences=[Text(line, "bold" if found.passed else "bold red")],
        title=line,
        page="report",
    )


def verdict_table(found: LosslessReport) -> Table:
    """One row a composition."""
    columns = [Column("composition"), Column("verifier"), Column("verdict"), Column("equal outputs")]
    columns += [Column("toy joint, p", 4), Column("first tokens, p", 4)]
    table = Table(f"Is it lossless? {found.name}", columns)
    for finding in (*found.findings, *(control for control in found.plain if control.failed)):
        first = [test.fit.p_value for test in finding.first_tokens]
        table.rows.append(
            [
                finding.title,
                finding.verifier,
                finding.verdict,
                None if finding.equality is None else str(finding.equality),
                None if finding.joint is None else finding.joint.p_value,
                min(first) if first else None,
            ]
        )
    table.notes = [f"{found.setting[0].upper()}{found.setting[1:]}."]
    if found.tests:
        table.notes.append(
            f"{found.tests} statistical tests share the level {found.level:g}: each refuses at p below "
            f"{found.level_of_each:.2g} (Bonferroni). The least p-value is shown."
        )
    if found.skipped:
        table.notes.append(f"Not verified, for they are not our loops: {', '.join(found.skipped)}.")
    table.notes += [
        f"{finding.title}: no toy test ({finding.not_tested})."
        for finding in found.all
        if finding.not_tested is not None
    ]
    for finding in found.all:
        if finding.errors:
            table.notes.append(f"{finding.title}: {len(finding.errors)} errors, e.g. {finding.errors[0]}")
    return table


def difference_table(found: LosslessReport) -> Table:
    """Where outputs part from plain decoding's, and how close the target itself came to the other token."""
    columns = [Column("composition"), Column("prompt"), Column("sample"), Column("token"), Column("gap", 4)]
    table = Table("Differences from plain decoding, near ties included", [*columns, Column("excused")])
    rows = [
        (finding.title, record)
        for finding in found.findings
        for record in finding.differences
        if record.difference is not None
    ]
    for title, record in rows[:_MOST_DIFFERENCES]:
        difference = record.difference
        assert difference is not None
        excused = "near tie" if difference.near_tie else "NO"
        table.rows.append([title, record.prompt_id, record.sample, difference.index, difference.gap, excused])
    table.notes = [
        "gap: distance of the two best values of logits + T * noise in plain decoding, or to the top-k / top-p cut; "
        "excused within the rounding of a 16-bit dtype, never in float32."
    ]
    if len(rows) > _MOST_DIFFERENCES:
        table.notes.append(f"{len(rows) - _MOST_DIFFERENCES} more in report.json.")
    return table


def toy_table(found: LosslessReport) -> Table:
    """The joints on the toy target, with what they could have found."""
    columns = [Column("composition"), Column("continuations"), Column("steps"), Column("tokens/step")]
    columns += [Column("cells"), Column("p", 4), Column("TV", 3), Column("bound", 3), Column("finds TV", 3)]
    columns += [Column("3 steps: cells"), Column("p", 4), Column("TV", 3), Column("bound", 3)]
    table = Table("Toy target: joint of the first tokens, and of three consecutive steps", [*columns])
    tokens = 0
    for finding in found.findings:
        test = finding.joint
        if test is None:
            continue
        tokens = test.tested_tokens
        row: list[Cell] = [
            finding.title,
            test.tokens.samples,
            f"{test.steps_needed:.2f}",
            test.tokens_per_step,
        ]
        row += [
            test.tokens.observed.size,
            test.tokens.p_value,
            test.total_variation,
            test.bound,
            test.detectable,
        ]
        if test.steps is None:
            row += [None] * 4
        else:
            steps = test.steps
            row += [steps.observed.size, steps.p_value, steps.total_variation, steps.bound]
        table.rows.append(row)
    table.notes = [
        f"Joint of the first {tokens} tokens against all enumerated sequences (rare ones pooled): Pearson's chi-square "
        "and total variation (TV), whose bound exact samples exceed at most at the level of each test. steps: mean "
        "number of steps these tokens took.",
        f"finds TV: whatever its form, a deviation of this total variation over the cells is found with "
        f"{100 * POWER:.0f} % probability.",
        "3 steps: joint of the first token of each of three consecutive steps, as its place in the distribution it "
        "should come from; not for deterministic verifiers, where a coupled drafter may look ahead.",
    ]
    return table


def first_token_table(found: LosslessReport) -> Table:
    """The first tokens on the configured models."""
    columns = [Column("composition"), Column("prompt"), Column("samples"), Column("cells"), Column("p", 4)]
    columns += [Column("TV", 3), Column("bound", 3), Column("finds TV", 3), Column("p vs plain samples", 4)]
    table = Table("Configured models: the first tokens", columns)
    titled = [(finding.title, finding) for finding in found.findings]
    titled += [(f"{finding.title}, {finding.verifier}", finding) for finding in found.plain]
    for title, finding in titled:
        for test in finding.first_tokens:
            fit = test.fit
            table.rows.append(
                [
                    *(title, test.prompt_id, fit.samples, fit.observed.size, fit.p_value),
                    *(fit.total_variation, fit.bound, fit.detectable, test.against_plain),
                ]
            )
    table.notes = [
        "Counts of the likeliest beginnings and of all others together, against the target's own probabilities (exact, "
        "from tree passes) and against as many samples of plain decoding with other noise (two-sample chi-square)."
    ]
    return table


def verdict_line(found: LosslessReport) -> str:
    """The whole result in a line."""
    failed = [finding for finding in found.all if finding.failed]
    lossy = [finding for finding in found.findings if not finding.lossless and not finding.failed]
    if failed:
        return f"FAILED: {', '.join(_name(finding) for finding in failed)}"
    text = f"{len(found.findings) - len(lossy)} compositions are lossless here"
    return text + (f"; {len(lossy)} labelled lossy" if lossy else "")


def _name(finding: Finding) -> str:
    return f"{finding.title} ({finding.verdict})"
