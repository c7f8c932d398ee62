"""The report: the published figures of every row, ours, whether the trend agrees, and what differs from the papers."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reproduce.paper_row import KINDS, Line, Overview, PaperRow, RowAtOtherCosts, overviews
from experiments.reproduce.row_record import RowRecord, json_text
from experiments.reproduce.trend import (
    AGREES,
    DISAGREES,
    TOO_SMALL,
    UNDECIDED,
    Figure,
    Outcome,
    Term,
    difference,
    format_figure,
    verdict,
)
from specexp.artifacts.atomic_write import atomic_write

NOT_MEASURED = "not measured"
NOT_HERE = "not measured here"
PARTS = Path(__file__).parent


@dataclass(frozen=True)
class Finding:
    """The result of a row or of one of its parts, by kind: a verdict with outcomes, or the reason for none."""

    row: PaperRow
    state: str
    parts: Mapping[str, Finding]
    outcomes: Sequence[Outcome] = ()
    record: RowRecord | None = None
    why_not: str = ""

    def state_of(self, kind: str) -> str:
        """Return the verdict of a part with the source of its costs."""
        if (part := self.parts.get(kind)) is None:
            return f"not {kind}"
        assert isinstance(part.row, RowAtOtherCosts)
        return f"{part.state} ({part.row.source} costs)"


def assess(rows: Iterable[PaperRow], records: Path) -> list[Finding]:
    """Test rows and their parts on the records in a folder."""
    return [_test(row, row, records) for row in rows]


def _test(row: PaperRow, recorded: PaperRow, records: Path) -> Finding:
    """Test a row on the record of ``recorded``; it is not measured if a run is missing or outdated."""
    parts = {kind: _test(part, row if part.name == row.name else part, records) for kind, part in row.parts.items()}
    if row.not_measured:
        return Finding(row, NOT_HERE, parts, why_not=row.not_measured)
    record = RowRecord.read(records, recorded)
    missing = [why for run in recorded.each_run() if (why := record.why_not(run))]
    valid = {run.key: record.runs[run.key] for run in recorded.each_run() if not record.why_not(run)}
    record = record.model_copy(update={"runs": valid})
    try:
        if missing:
            raise LookupError(missing[0])
        outcomes = [
            clause.test(lambda term: record.look_up(row, term), record.ratios(row, clause)) for clause in row.test
        ]
    except LookupError as error:
        partial = record if valid else None
        return Finding(row, NOT_MEASURED, parts, record=partial, why_not=str(error))
    return Finding(row, verdict(outcomes, row.main, row.effect), parts, outcomes, record)


def count(states: Sequence[str]) -> str:
    """Return a sentence with the number of rows in each state."""
    counts = dict.fromkeys((AGREES, DISAGREES, UNDECIDED, TOO_SMALL, NOT_HERE, NOT_MEASURED), 0)
    for state in states:
        word = next((word for word in counts if state.startswith(word)), state)
        counts[word] = counts.get(word, 0) + 1
    shown = [f"{n} {word if n == 1 else word.removesuffix('s')}" for word, n in counts.items() if n]
    return f"{', '.join(shown)}."


def write_report(found: Sequence[Finding], folder: Path, pictures: str) -> None:
    """Write ``REPRODUCTION.md`` and ``verdicts.json``; ``pictures`` is the pictures' path relative to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / "REPRODUCTION.md", markdown(found, pictures))
    atomic_write(folder / "verdicts.json", json_text(list(map(_verdict, found))))


def _verdict(found: Finding) -> dict[str, Any]:
    """Return a row's entry in ``verdicts.json``."""
    row = found.row
    entry = {name: getattr(row, name) for name in ("name", "paper", "place", "claim", "published", "untestable")}
    entry = {"row": entry.pop("name"), **entry, "measured": _tested(found)}
    entry["modelled"] = {"verdict": found.state_of("modelled"), "why_not": row.not_modelled}
    for kind, part in found.parts.items():
        assert isinstance(part.row, RowAtOtherCosts)
        entry[kind] = {**_tested(part), "source": part.row.source, "costs": part.row.costs}
    return {**entry, **({"simulated": row.simulated} if row.simulated else {})}


def _tested(found: Finding) -> dict[str, Any]:
    clauses = [
        {
            "clause": clause.text,
            "figures": {name: list(figure) for name, figure in outcome.figures.items()},
            "ratios": {name: list(ratio) for name, ratio in outcome.ratios.items()},
            "differences": {name: list(one) for name, one in outcome.differences.items()},
            "smallest_effect": outcome.smallest_effect,
            "holds": outcome.holds,
            "within_noise": outcome.within_noise,
        }
        for clause, outcome in zip(found.row.test, found.outcomes, strict=False)
    ]
    shown = {"main": found.row.main, "effect": found.row.effect, "clauses": clauses}
    return {"verdict": found.state, "why_not": found.why_not, **shown}


def markdown(found: Sequence[Finding], pictures: str) -> str:
    """Return the report: what is faster, a table for each paper, all verdicts, the rows, and the deviations."""
    rows, papers = {one.row.name: one for one in found}, overviews()
    shown = [line for key, paper in papers.items() for line in _overview(paper, key, rows)]
    modelled, matched = (count([one.state_of(kind) for one in found]) for kind in KINDS)
    apart = sum(len(one.row.untestable) for one in found)
    introduction = (PARTS / "introduction.md").read_text(encoding="utf-8")
    lines = [
        introduction.replace("FASTER", _faster(papers, rows)).replace("TABLES", "\n".join(shown).strip()),
        f"Measured, of {len(found)} rows: {count([one.state for one in found])} Modelled: {modelled} Matched: {matched}"
        f" {apart} parts of claims cannot be tested here and are not counted. These counts are never added up.",
        "",
        "| row | pair | measured | modelled | matched | the trend |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        row, anchor = one.row, one.row.name.replace(".", "")
        states = " | ".join([_pair(one), one.state, *map(one.state_of, KINDS)])
        lines.append(f"| [{row.paper}, {row.place}](#{anchor}) | {states} | {row.claim} |")
    for one in found:
        lines += _section(one, pictures)
    return "\n".join([*lines, "", (PARTS / "deviations.md").read_text(encoding="utf-8").rstrip()]) + "\n"


def _overview(paper: Overview, key: str, rows: Mapping[str, Finding]) -> Iterator[str]:
    """Yield a paper's first table and what differs; "-" stands for a figure that is not published or measured."""
    yield from ("", f"### {paper.paper}", "")
    yield "| method | paper: tokens a step | speed-up | tokens a step | measured | modelled | matched | simulated |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for line in paper.lines:
        one = rows.get(f"{key}.{line.row}")
        parts = [one.parts.get(kind) if one else None for kind in KINDS]
        figures = [_figure(one, line.tokens), _figure(one, line.speed), *(_priced(one, part, line) for part in parts)]
        ours = ["-" if one is None else format_figure([float(f"{n:.3g}") for n in one]) for one in figures]
        others = [figure or "-" for figure in (*line.paper, line.simulated)]
        yield f"| {' | '.join([line.method, *others[:2], *ours, others[2]])} |"
    yield from ("", paper.text)


def _faster(papers: Mapping[str, Overview], rows: Mapping[str, Finding]) -> str:
    """Return the lines of the papers' tables that are faster than plain decoding by their intervals, as a list."""
    faster = [
        f"{line.method} ({paper.paper}) {format_figure(speed)}x"
        for key, paper in papers.items()
        for line in paper.lines
        if (speed := _figure(rows.get(f"{key}.{line.row}"), line.speed)) and speed[min(1, len(speed) - 1)] > 1
    ]
    return "; ".join(faster) or "none"


def _figure(one: Finding | None, term: Term) -> Figure | None:
    """Return a figure from the record of a row or its modelled test; None if there is none."""
    if one is None or one.record is None:
        return None
    with suppress(LookupError):
        return one.record.look_up(one.row, term)
    return None


def _priced(one: Finding | None, part: Finding | None, line: Line) -> Figure | None:
    """Return a line's speed at the costs of a part, by its formula or of the part's own run; None if there is none."""
    if one is None or part is None or (record := part.record) is None:
        return None
    if line.priced:
        return difference(line.priced, "0", lambda term: record.look_up(part.row, term))
    return None if part.row.name == one.row.name else _figure(part, line.speed)


def _pair(one: Finding) -> str:
    """Return the target and draft of a row's record."""
    pair = next(iter(one.record.runs.values()))["pair"] if one.record else {}
    return ", ".join(pair[role] for role in ("target", "draft") if role in pair) or "-"


def _answers(record: RowRecord) -> Iterator[str]:
    """Yield the loops among the answers of each run, and the evaluations of its searches that could not be read."""
    for name, run in record.runs.items():
        loops = [np.atleast_1d(arm["loop_share"])[0] for arm in run["arms"].values() if "loop_share" in arm]
        if loops:
            where = f" of {name}" if name else ""
            others = f", of other arms up to {max(loops[1:]):.1%}" if loops[1:] else ""
            yield f"Loops{where}: {loops[0]:.1%} of plain decoding's answers{others}"
        for label, cells in run["tables"].get("reasoning_table_answers", {}).items():
            if unread := cells.get("unparsable"):
                yield f"Evaluations that could not be read, {label}: {unread:g} of {cells['evaluations']:g}"


def _section(one: Finding, pictures: str) -> Iterator[str]:
    row = one.row
    yield from ("", f"## {row.name}", "", f"{row.paper}, {row.place}: {row.claim}", "")
    yield f"- Published: {row.published}"
    if row.declared_after:
        yield f"- Declared again on {row.declared}, after {row.declared_after}"
    elif row.declared:
        yield f"- Declared before any record of it on this pair: {row.declared}"
    yield f"- Measured: **{one.state}**"
    yield from _clauses(one)
    if row.machine:
        yield f"  - on {row.machine}:"
        yield from (f"  - `python -m specexp.run {shlex.join(run.arguments)}`" for run in row.each_run())
    if row.modelled is None:
        yield f"- Modelled: **not modelled**: {row.not_modelled}"
    for kind, part in one.parts.items():
        assert isinstance(part.row, RowAtOtherCosts)
        yield f"- {kind.capitalize()}: **{one.state_of(kind)}**. Costs: {part.row.costs}"
        yield from _clauses(part)
    if row.simulated:
        yield f"- Simulated: {row.simulated}"
    yield from (f"- Untestable here: {part}: {why}" for part, why in row.untestable.items())
    yield from (f"- Differs from the paper: {deviation}" for deviation in row.deviations)
    if one.record:
        yield from (f"- {line}" for line in _answers(one.record))
    if row.correction:
        yield f"- Correction of earlier reports: {row.correction}"
    yield from (f"- {line}" for line in _conditions(one.record))
    for part in one.parts.values():
        if part.row.name != row.name:
            yield from (f"- {line}" for line in _conditions(part.record))
    if one.outcomes and row.picture:
        yield from ("", f"![{row.name}]({pictures}/{row.results}/{row.name}.png)")


def _clauses(found: Finding) -> Iterator[str]:
    """Yield a line for each clause, and the reason why there is no result. The row's main clause is marked."""
    shown = map(str, found.outcomes) if found.outcomes else (clause.named() for clause in found.row.test)
    for number, text in enumerate(shown, 1):
        yield f"  - {'**main:** ' if number == found.row.main else ''}{text}"
    if found.row.test:
        effect = found.row.effect
        claimed = f"the paper's ratio in the main clause is {effect:g}" if effect else "the paper states no ratio"
        least = found.outcomes[found.row.main - 1].smallest_effect if found.outcomes else 0.0
        yield f"  - {claimed}{f'; the sample could show {least:.2f} or more' if least else ''}"
    if not found.outcomes:
        yield f"  - {found.why_not}"


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
            f"{', load {} before, {} after'.format(*loads) if (loads := run.get('loads')) else ''}"
        )
    return lines
