"""The tables of a verification."""

from __future__ import annotations

import json
from collections import Counter

from specexp.bench.publish import Report
from specexp.bench.table import Cell, Column, Table
from specexp.verify.exercised import Exercised
from specexp.verify.first_tokens import SHARE, first_p_value
from specexp.verify.result import Finding, LosslessReport
from specexp.verify.statistics import POWER, p_text

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
        "branches": branch_table(found),
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
    columns += [Column("toy tokens that differ"), Column("toy joint, p"), Column("first tokens, p")]
    table = Table(f"Is it lossless? {found.name}", columns)
    for finding in (*found.findings, *(control for control in found.plain if control.failed)):
        toy = finding.toy_equality
        table.rows.append(
            [
                finding.title,
                finding.verifier,
                finding.verdict,
                None if finding.equality is None else str(finding.equality),
                None if toy is None else f"{len(toy.wrong)} in {toy.said:,}",
                None if finding.joint is None else p_text(finding.joint.p_value),
                p_text(first_p_value(finding.first_tokens)) if finding.first_tokens else None,
            ]
        )
    table.notes = [
        f"{found.setting[0].upper()}{found.setting[1:]}.",
        f"A composition that is exact is refused with a probability of {found.level:g} at most: half of it is for the "
        "toy targets (Bonferroni over tests and looks; p is of all of them together), half for the configured models.",
    ]
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
        if finding.toy_equality is not None and finding.toy_equality.wrong:
            sequence, token, said, expected = finding.toy_equality.wrong[0]
            table.notes.append(
                f"{finding.title}: on a toy target, token {token} of continuation {sequence} was {said} instead of "
                f"{expected}."
            )
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


def branch_table(found: LosslessReport) -> Table:
    """How the steps ended on which all this rests."""
    columns = [
        Column("composition"),
        Column("decoded"),
        Column("tokens"),
        Column("steps"),
        Column("tree rows"),
    ]
    columns += [Column("rejections"), Column("how steps ended"), Column("never")]
    table = Table("What was exercised", columns)
    for finding in found.findings:
        for where, tokens, branches in _exercised(finding):
            table.rows.append(
                [
                    *(finding.title, where, f"{tokens:,}", f"{branches.steps:,}", f"{branches.rows:,}"),
                    *(f"{branches.rejections:,}", str(branches), "; ".join(branches.never) or None),
                ]
            )
    table.notes = [
        "rejected at depth d: every drafted token of that depth behind the accepted ones was refused; at depth 1 none "
        "was accepted. never: branches of the verifier that no step took, of which nothing is known."
    ]
    return table


def _exercised(finding: Finding) -> list[tuple[str, int, Exercised]]:
    found = []
    if finding.exercised is not None and finding.equality is not None:
        found.append(("configured models", finding.exercised.tokens, finding.exercised))
    if finding.toy_equality is not None:
        found.append(("toy targets, equality", finding.toy_equality.said, finding.toy_equality.branches))
    elif finding.joint is not None:
        found.append(("toy targets, law", finding.joint.branches.tokens, finding.joint.branches))
    return found


def toy_table(found: LosslessReport) -> Table:
    """The laws on the toy targets, with what they exclude."""
    columns = [Column("composition"), Column("toy"), Column("triples"), Column("tokens/step")]
    columns += [Column("cells"), Column("p of the joint"), Column("TV below", 3), Column("decision")]
    columns += [Column("least p"), Column("of")]
    table = Table("Toy targets: the joint of three tokens, and where a deviation may hide", [*columns])
    for finding in found.findings:
        for toy in () if finding.joint is None else finding.joint.toys:
            joint, worst, steps = toy.fits["tokens"], toy.worst, toy.tally.branches.steps
            row: list[Cell] = [
                *(finding.title, toy.manner, f"{toy.tally.blocks:,}", toy.tally.branches.tokens / steps),
                *(joint.observed.size, p_text(joint.p_value), toy.below, toy.decision),
                *(p_text(toy.fits[worst].p_value), worst),
            ]
            table.rows.append(row)
    table.notes = [
        "Joint of three consecutive tokens, each as its place in the target's law, against the product of that law "
        "(rare cells pooled): Pearson's chi-square, looked at up to 9 times until p is below the share of the level "
        f"that each test has at each look, or a total variation (TV) of {found.total_variation:g} is excluded.",
        f"TV below: whatever its form, a greater deviation over the cells would have shown with {100 * POWER:.0f} % "
        "probability, all looks together.",
        "open: several tokens are likely, the draft is right, too sure, opposed, elsewhere or half right. sure: one "
        "token mostly comes. least p of: the joint (tokens); first tokens of three consecutive steps; tokens by the "
        "one before; by place in a step; how often the first candidate comes, where nothing is drawn.",
        "A deterministic verifier's law is its own without drafts, which the compositions equal token for token.",
    ]
    return table


def first_token_table(found: LosslessReport) -> Table:
    """The first tokens on the configured models."""
    columns = [Column("composition"), Column("prompt"), Column("samples"), Column("cells"), Column("p")]
    columns += [Column("p of all prompts"), Column("finds TV", 3)]
    table = Table("Configured models: the first tokens, by Pearson's chi-square", columns)
    titled = [(finding.title, finding) for finding in found.findings]
    titled += [(f"{finding.title}, {finding.verifier}", finding) for finding in found.plain]
    for title, finding in titled:
        for number, test in enumerate(finding.first_tokens):
            fit = test.fit
            every: list[Cell] = [None, None]
            if number == 0:
                every = [p_text(first_p_value(finding.first_tokens)), finding.first_detectable]
            table.rows.append(
                [title, test.prompt_id, fit.samples, fit.observed.size, p_text(fit.p_value), *every]
            )
    table.notes = [
        "Counts of the likeliest beginnings and of all others together (cells fixed beforehand by the target's own "
        "exact probabilities, from tree passes; rare ones pooled). The sum over the prompts is tested at "
        f"{found.level * SHARE:g}; plain decoding is the control.",
        f"finds TV: a deviation of this total variation over the cells, whatever its form, is found with "
        f"{100 * POWER:.0f} % probability.",
    ]
    return table


def verdict_line(found: LosslessReport) -> str:
    """The whole result in a sentence, with what could have been found."""
    failed = [finding for finding in found.all if finding.failed]
    if failed:
        return f"FAILED: {', '.join(_name(finding) for finding in failed)}"
    verdicts = Counter(finding.verdict for finding in found.findings)
    return ". ".join(
        f"{count} {'composition' if count == 1 else 'compositions'}: {verdict}"
        for verdict, count in verdicts.items()
    )


def _name(finding: Finding) -> str:
    return f"{finding.title} ({finding.verdict})"
