"""Runs what is missing of the rows, one process a run, and keeps a compact record of each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from specexp.reproduce.paper_row import SHORT, PaperRow
from specexp.reproduce.row_record import RowRecord, RowRecordError, measured, pair_of


@dataclass(frozen=True)
class Wanted:
    """A run of a row.

    Attributes:
        row: the row.
        run: name of the run; empty where the row has one.
        arguments: what follows ``python -m specexp.run``.
    """

    row: PaperRow
    run: str
    arguments: tuple[str, ...]

    @property
    def label(self) -> str:
        """What it is called where all runs are told."""
        return f"{self.row.name} {self.run}".strip()

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.label.replace(".", "_").replace(" ", "_")


def wanted(rows: Sequence[PaperRow], given: Sequence[str], short: bool) -> list[Wanted]:
    """Every run of the rows.

    Args:
        rows: Rows.
        given: Overrides of every run, ``--key`` and value in turns; they go before what a row says itself.
        short: Whether runs are to be short.
    """
    return [
        Wanted(row, run, (arguments[0], *_merged(given, arguments[1:], SHORT + row.short if short else ())))
        for row in rows
        for run, arguments in row.runs.items()
    ]


def _merged(*overrides: Sequence[str]) -> list[str]:
    """Overrides one behind the other, of which the last of a key counts; files laid on top stay, the first below."""
    found: dict[str, str] = {}
    composed: list[str] = []
    for given in overrides:
        for key, value in zip(given[::2], given[1::2], strict=True):
            if key == "--compose":
                composed += [key, value]
            else:
                found[key] = value
    return [*composed, *(part for pair in found.items() for part in pair)]


def missing(runs: Sequence[Wanted], records: Path) -> list[Wanted]:
    """Those without a figure that counts today."""
    return [one for one in runs if _why_missing(one, records) is not None]


def measure(
    one: Wanted,
    records: Path,
    output: Path,
    done: dict[tuple[str, ...], Path],
    told: Callable[[str], None] = print,
    given: Sequence[str] = (),
) -> int:
    """Run, and add what it gave to the row's record.

    Args:
        one: What is run.
        records: Folder of the records.
        output: Folder of runs; what a run says goes into ``<output>/<name>.log``.
        done: Folders of the runs of this process by their arguments: rows that ask for the same share one; the run is
            added.
        told: Told a line before the run and one after it.
        given: Overrides that change nothing that is measured, such as where it is tracked.

    Returns:
        The exit code of the run: what it gave is kept where it is 0.
    """
    folder, log = done.get(one.arguments, output / one.name), output / f"{one.name}.log"
    command = [sys.executable, "-m", "specexp.run", *one.arguments, *given]
    command += ["--output", str(output), "--name", one.name]
    told(f"{one.label}: python -m specexp.run {' '.join(one.arguments)}")
    output.mkdir(parents=True, exist_ok=True)
    started = perf_counter()
    if one.arguments not in done:
        with log.open("w", encoding="utf-8") as file:
            code = subprocess.run(command, stdout=file, check=False).returncode
        if code:
            told(f"{one.label}: not measured (exit code {code}); {log} says more")
            return code
        done[one.arguments] = folder
    earlier = _record(one, records)
    runs = {**(earlier.runs if earlier else {}), one.run: measured(one.row, one.arguments, folder)}
    path = RowRecord(one.row.name, runs).write(records)
    picture = folder / f"{one.row.picture}.png"
    if one.row.picture and picture.is_file():
        (records / f"{one.row.name}.png").write_bytes(picture.read_bytes())
    told(f"{one.label}: {perf_counter() - started:.0f} s, {path}")
    return 0


def _record(one: Wanted, records: Path) -> RowRecord | None:
    try:
        return RowRecord.read(records, one.row)
    except RowRecordError:
        return None


def _why_missing(one: Wanted, records: Path) -> str | None:
    record = _record(one, records)
    return (
        "it is not measured" if record is None else record.why_not(one.row, one.run, pair_of(one.arguments))
    )
