"""The report: the published figures of every row, ours, and whether the trend agrees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from experiments.reproduce.paper_row import PaperRow
from experiments.reproduce.row_record import RowRecord
from experiments.reproduce.trend import AGREES, DISAGREES, PARTLY, Outcome, verdict
from specexp.artifacts.atomic_write import atomic_write

NOT_MEASURED = "not measured on this pair"
# Remove the second paragraph once all rows are measured again, with whole prompts.
_HEAD = """# The tables and figures of the four papers

Written by `python -m experiments.reproduce --report` from the records in `results/`. A trend is tested as it was \
declared before the measurement (`experiments/reproduce/rows`); intervals are 95 % bootstrap ones over prompts. Causes \
of what differs were looked for after it: they have a test too, on a run of their own or on the row's record.

**These figures are preliminary.** The prompts of every record were cut short: the line break at their end was \
stripped, so the target continued texts unlike those of its training. All rows will be measured again.
"""


@dataclass(frozen=True)
class Finding:
    """The result of a row: its state, its outcomes or the reason why there are none, and the result of its cause."""

    row: PaperRow
    state: str
    outcomes: Sequence[Outcome] = ()
    record: RowRecord | None = None
    why_not: str = ""
    cause: Finding | None = None


def assess(rows: Iterable[PaperRow], records: Path) -> list[Finding]:
    """Test rows and their causes on the records in a folder."""
    return [_test(row, row, records) for row in rows]


def _test(row: PaperRow, measured: PaperRow, records: Path) -> Finding:
    """Test a row on the record of ``measured``; it is not measured if a run is missing or outdated."""
    cause = _test(row.cause, row.measured[-1], records) if row.cause else None
    record = RowRecord.read(records, measured)
    try:
        for run in measured.each_run():
            if why_not := record.why_not(run):
                raise LookupError(why_not)
        outcomes = [clause.test(lambda term: record.look_up(row, term)) for clause in row.test]
    except LookupError as error:
        return Finding(row, NOT_MEASURED, why_not=str(error), cause=cause)
    return Finding(row, verdict(outcomes), outcomes, record, cause=cause)


def count(found: Sequence[Finding]) -> str:
    """Return a sentence with the number of rows in each state."""
    words = (AGREES, PARTLY, DISAGREES, NOT_MEASURED)
    counts = {word: sum(one.state.startswith(word) for one in found) for word in words}
    shown = [f"{n} {word if n == 1 else word.removesuffix('s')}" for word, n in counts.items() if n]
    return f"{', '.join(shown)}."


def write_report(found: Sequence[Finding], folder: Path, pictures: str) -> None:
    """Write ``REPRODUCTION.md`` and ``reproduction.csv``; ``pictures`` is the pictures' path relative to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / "REPRODUCTION.md", markdown(found, pictures))
    columns = ["row", "paper", "where", "trend", "published", "here"]
    cells = [
        (row.name, row.paper, row.place, one.state, row.published, "; ".join(map(str, one.outcomes)) or "-")
        for one in found
        for row in [one.row]
    ]
    atomic_write(folder / "reproduction.csv", pd.DataFrame(cells, columns=columns).to_csv(index=False))


def markdown(found: Sequence[Finding], pictures: str) -> str:
    """Return the report: an overview, then a section for each row."""
    lines = [_HEAD, count(found), "", "| row | where | trend |", "|---|---|---|"]
    for one in found:
        name, anchor = one.row.name, one.row.name.replace(".", "")
        lines.append(f"| [{name}](#{anchor}) | {one.row.paper}, {one.row.place} | {one.state} |")
    for one in found:
        row, cause = one.row, one.cause
        lines += ["", f"## {row.name}", "", f"{row.paper}, {row.place}: {row.claim}", ""]
        lines += [f"- Published: {row.published}", f"- Here: **{one.state}**"]
        lines += [f"- Test: `{clause.text}`" for clause in row.test if not one.outcomes]
        lines += [f"- {line}" for line in (*one.outcomes, one.why_not) if line]
        if cause:
            own = _conditions(cause.record) if len(row.measured) > 1 else []
            lines += [f"- Why: {cause.row.claim}"]
            lines += [f"  - {line}" for line in (*cause.outcomes, cause.why_not, *own) if line]
        lines += [f"- {line}" for line in _conditions(one.record)]
        if one.record and row.picture:
            lines += ["", f"![{row.name}]({pictures}/{row.name}.png)"]
    return "\n".join(lines) + "\n"


def _conditions(record: RowRecord | None) -> list[str]:
    """Return the command and the conditions of each run."""
    lines = []
    for run in record.runs.values() if record else ():
        device, versions, pair = run["device"], run["versions"], run["pair"]
        commit = f"commit {run['commit'][:9]}" if run["commit"] else "no commit"
        lines.append(
            f"`{run['command']}`: {run['prompts']} prompts, {run['clock']}, {run['time'][:10]}, {commit}"
            f"{', with changes' if run['dirty'] else ''}, pair {pair['target']} ({pair['digest'] or 'of the hub'}), "
            f"{device['device']}, {device['device_name']}, {device['threads']} of {device['cpu_count']} threads, "
            f"torch {versions['torch']}, transformers {versions['transformers']}"
        )
    return lines
