"""The report: every row with the paper's figures, ours, and whether the trend is there, as tables and as pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path

from experiments.reproduce.measure import Wanted, wanted
from experiments.reproduce.paper_row import PaperRow
from experiments.reproduce.row_record import RowRecord, RowRecordError, pair_of
from experiments.reproduce.trend import VERDICTS, Tested, verdict
from specexp.bench.page.html_page import html_page
from specexp.bench.publish import Report
from specexp.bench.table import Table, columns

PAGE = "REPRODUCTION"
HTML = f"{PAGE.lower()}.html"
TITLE = "The tables and figures of the four papers"
NOT_MEASURED = "not measured on this pair"
_NOTE = (
    "**These figures are preliminary.** The prompts of every record were cut short: the line break at their end was "
    "stripped, so the target continued texts unlike those of its training. All rows will be measured again."
)
"""To be removed once the records are of whole prompts."""


@dataclass(frozen=True)
class Found:
    """What there is to say of a row.

    Attributes:
        row: the row.
        state: the verdict, or that it was not measured on this pair.
        outcomes: of its tests.
        record: what was measured, where it counts.
        why_not: why there is no verdict; empty where there is one.
        cause: what there is to say of why it differs, where the row tells it.
    """

    row: PaperRow
    state: str
    outcomes: Sequence[Tested] = ()
    record: RowRecord | None = None
    why_not: Sequence[str] = field(default=())
    cause: Found | None = None

    def lines(self) -> list[str]:
        """Facts about the measurement."""
        told = []
        for one in (self.record.runs if self.record else {}).values():
            device, commit = one["device"], f"commit {one['commit'][:9]}" if one["commit"] else "no commit"
            changed = ", with changes" if one["dirty"] else ""
            told.append(
                f"`{one['command']}`: {one['prompts']} prompts, {one['clock']}, {one['time'][:10]}, {commit}"
                f"{changed}, pair {one['pair']['target']} ({one['pair']['digest'] or 'of the hub'}), "
                f"{device['device']}, {device['device_name']}, {device['threads']} of {device['cpu_count']} threads, "
                f"torch {one['versions']['torch']}, transformers {one['versions']['transformers']}"
            )
        return told


def look_at(
    rows: Sequence[PaperRow], records: Path, given: Sequence[str] = (), short: bool = False
) -> list[Found]:
    """What the records say of rows.

    Args:
        rows: Rows.
        records: Folder of the records.
        given: Overrides of every run, that name the pair.
        short: Whether the records are of short runs.
    """
    runs: dict[str, list[Wanted]] = {}
    for one in wanted(rows, given, short):
        runs.setdefault(one.row.name, []).append(one)

    def found(row: PaperRow) -> Found:
        return _look_at(row, records, runs[row.name])

    return [
        replace(found(row), cause=None if row.cause is None else _tested(row, row.cause, found))
        for row in rows
    ]


def report(found: Sequence[Found], pictures: str) -> Report:
    """The report's tables, sentences and pages.

    Args:
        found: What there is to say, row by row.
        pictures: Where pictures lie, seen from the page.
    """
    overview = Table(
        "Every row, the paper's figures and ours",
        columns("row | paper | where | trend | published | here"),
    )
    for one in found:
        here = "; ".join(map(str, one.outcomes)) or "-"
        overview.rows.append([one.row.name, one.row.paper, one.row.place, one.state, one.row.published, here])
    return Report(
        files={
            f"{PAGE}.md": _markdown(found, pictures),
            HTML: _html(found, pictures),
        },
        data={"reproduction": overview},
        sentences=[f"{one.row.name}: {one.row.place}: {one.state}" for one in found],
        answer=_answer(found),
        summary={f"rows/{state}": count for state, count in _counted(found).items()},
    )


def _look_at(row: PaperRow, records: Path, runs: Sequence[Wanted]) -> Found:
    try:
        record = RowRecord.read(records, row)
        if record is None:
            return Found(row, NOT_MEASURED, why_not=[f"the record of {row.name} is not measured yet"])
        said = (record.why_not(row, one.run, pair_of(one.arguments)) for one in runs)
        if why_not := [reason for reason in said if reason is not None]:
            return Found(row, NOT_MEASURED, why_not=why_not)
        counted = record
        outcomes = [clause.test(lambda term: counted.look_up(row, term)) for clause in row.clauses]
    except RowRecordError as error:
        return Found(row, NOT_MEASURED, why_not=[str(error)])
    return Found(row, verdict(outcomes), outcomes, record)


def _tested(row: PaperRow, cause: PaperRow, found: Callable[[PaperRow], Found]) -> Found:
    """What became of a cause: its own measurement, or its test on the row's."""
    if row.measured_causes:
        return found(cause)
    of_the_row = found(row)
    if of_the_row.record is None:
        return Found(cause, NOT_MEASURED)
    record = of_the_row.record
    outcomes = [clause.test(lambda term: record.look_up(cause, term)) for clause in cause.clauses]
    return Found(cause, verdict(outcomes), outcomes)


def counted_states(found: Sequence[Found]) -> str:
    """How many rows came to what, as a sentence."""
    told = [
        f"{count} {state if count == 1 else state.removesuffix('s')}"
        for state, count in _counted(found).items()
    ]
    return f"{', '.join(told)}."


def _answer(found: Sequence[Found]) -> str:
    return f"Of {len(found)} tables and figures: {counted_states(found)}"


def _counted(found: Sequence[Found]) -> dict[str, int]:
    states = [one.state.partition(",")[0].partition(" (")[0] for one in found]
    return {state: states.count(state) for state in (*VERDICTS, NOT_MEASURED) if state in states}


def _markdown(found: Sequence[Found], pictures: str) -> str:
    lines = [
        f"# {TITLE}",
        "",
        "Written by `python -m experiments.reproduce --report` from the records in `results/`. A trend is tested as "
        "it was declared before the measurement (`experiments/reproduce/rows`); intervals are 95 % bootstrap ones over "
        "prompts. "
        "Causes of what differs were looked for after it: they have a test too, on a run of their own or on the row's "
        "record.",
        "",
        _NOTE,
        "",
        counted_states(found),
        "",
        "| row | where | trend |",
        "|---|---|---|",
        *(
            f"| [{one.row.name}](#{_anchor(one)}) | {one.row.paper}, {one.row.place} | {one.state} |"
            for one in found
        ),
    ]
    for one in found:
        lines += ["", f"## {one.row.name}", "", *row_markdown(one)]
        if one.record and one.row.picture:
            lines += ["", f"![{one.row.name}]({pictures}/{one.row.name}.png)"]
    return "\n".join(lines) + "\n"


def row_markdown(one: Found) -> list[str]:
    """What there is to say of a row, below its heading."""
    lines = [f"{one.row.paper}, {one.row.place}: {one.row.claim}", ""]
    lines += [f"- Published: {one.row.published}", f"- Here: **{one.state}**"]
    lines += [f"- {outcome}" for outcome in one.outcomes]
    lines += [f"- Test: `{clause.text}`" for clause in one.row.clauses if not one.outcomes]
    lines += [f"- {_sentence(reason)}" for reason in one.why_not]
    if one.cause is not None:
        lines += [f"- Why: {one.cause.row.claim}"]
        lines += [
            f"  - {said}" for said in (*map(str, one.cause.outcomes), *map(_sentence, one.cause.why_not))
        ]
        lines += [f"  - {line}" for line in one.cause.lines()]
    return lines + [f"- {line}" for line in one.lines()]


def _html(found: Sequence[Found], pictures: str) -> str:
    """The page of every report, with a section a row."""
    overview = Table("Every row", columns("row | paper | where | trend"))
    overview.rows += [[one.row.name, one.row.paper, one.row.place, one.state] for one in found]
    overview.notes.append(_NOTE.replace("**", ""))
    sections = {one.row.name: _section(one, pictures) for one in found}
    page = Report({"overview": overview}, title=TITLE, fragments=sections, answer=_answer(found))
    return html_page([page], {})


def _section(one: Found, pictures: str) -> str:
    told = [escape(str(outcome)) for outcome in one.outcomes]
    told += [f"Test: <code>{escape(clause.text)}</code>" for clause in one.row.clauses if not one.outcomes]
    told += [escape(_sentence(reason)) for reason in one.why_not]
    if one.cause is not None:
        cause = [*map(str, one.cause.outcomes), *map(_sentence, one.cause.why_not), *one.cause.lines()]
        items = "".join(f"<li>{escape(line).replace('`', '')}</li>" for line in cause)
        told += [f"Why: {escape(one.cause.row.claim)}<ul>{items}</ul>"]
    told += [escape(line).replace("`", "") for line in one.lines()]
    name = escape(one.row.name)
    picture = (
        f'<img src="{escape(pictures)}/{name}.png" alt="{name}">' if one.record and one.row.picture else ""
    )
    return (
        f'<section id="{_anchor(one)}" aria-label="{name}"><h2>{name}</h2><p>{escape(one.row.paper)}, '
        f"{escape(one.row.place)}: {escape(one.row.claim)}</p><p>Published: {escape(one.row.published)}</p>"
        f"<p>Here: {escape(one.state)}</p><ul>{''.join(f'<li>{line}</li>' for line in told)}</ul>{picture}</section>"
    )


def _anchor(one: Found) -> str:
    return one.row.name.replace(".", "")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
