"""Runs what is missing of the rows, one process a run, and keeps a compact record of each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from time import perf_counter, sleep

from experiments.reproduce.paper_row import SHORT, PaperRow
from experiments.reproduce.row_record import RowRecord, RowRecordError, measured, pair_of
from specexp.core.messages import first_line

_LOOK = 0.2  # seconds between two looks at whether a run has ended


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
    """Every run of the rows, and of what tells why they differ.

    Args:
        rows: Rows.
        given: Overrides of every run, ``--key`` and value in turns; they go before what a row says itself.
        short: Whether runs are to be short.
    """
    return [
        Wanted(row, run, (arguments[0], *_merged(given, arguments[1:], SHORT + row.short if short else ())))
        for declared in rows
        for row in (declared, *declared.measured_causes)
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
                found.pop(key, None)  # in the place of the last: a part goes before what is set inside it
                found[key] = value
    return [*composed, *(part for pair in found.items() for part in pair)]


def missing(runs: Sequence[Wanted], records: Path) -> list[Wanted]:
    """Those without a figure that counts today."""
    return [one for one in runs if _why_missing(one, records) is not None]


def measure(
    runs: Sequence[Wanted],
    records: Path,
    output: Path,
    at_once: int = 1,
    told: Callable[[str], None] = print,
    given: Sequence[str] = (),
) -> int:
    """Make the runs, and add what each gave to the records of all rows that ask for it.

    Runs of rows that count seconds of this machine are alone on it; of the others several go at once, on a thread each.

    Args:
        runs: What is run; those of the same arguments are one.
        records: Folder of the records.
        output: Folder of runs; what a run says goes into ``<output>/<name>.log``.
        at_once: How many may go at once where their seconds do not count.
        told: Told a line before a run and one after it.
        given: Overrides that change nothing that is measured, such as where it is tracked.

    Returns:
        How many failed: what a run gave is kept where its exit code is 0.
    """
    output.mkdir(parents=True, exist_ok=True)
    shared: dict[tuple[str, ...], list[Wanted]] = {}
    for one in runs:
        shared.setdefault(one.arguments, []).append(one)
    alone = [group for group in shared.values() if any(one.row.timed for one in group)]
    together = [group for group in shared.values() if group not in alone]
    failed = 0
    for groups, number in ((together, at_once), (alone, 1)):
        for group, took in _run(groups, output, number, told, given):
            kept = took is not None and _keep(group, records, output, told)
            told(f"{_label(group)}: {f'{took:.0f} s' if kept else 'not measured'}")
            failed += not kept
    return failed


def _run(
    groups: Sequence[Sequence[Wanted]],
    output: Path,
    at_once: int,
    told: Callable[[str], None],
    given: Sequence[str],
) -> Iterator[tuple[Sequence[Wanted], float | None]]:
    """Runs with their seconds as they end, None of those that failed."""
    environment = {**os.environ, **({"OMP_NUM_THREADS": "1"} if at_once > 1 else {})}
    waiting = list(groups)
    going: list[tuple[Sequence[Wanted], subprocess.Popen[bytes], float]] = []
    try:
        while waiting or going:
            while waiting and len(going) < at_once:
                group = waiting.pop(0)
                one = group[0]
                rmtree(
                    output / one.name, ignore_errors=True
                )  # an earlier run may have been of other settings
                told(f"{_label(group)}: python -m specexp.run {' '.join(one.arguments)}")
                command = [sys.executable, "-m", "specexp.run", *one.arguments, *given]
                command += ["--output", str(output), "--name", one.name]
                with (output / f"{one.name}.log").open("wb") as log:
                    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
                going.append((group, process, perf_counter()))
            ended = [one for one in going if one[1].poll() is not None]
            for group, process, started in ended:
                if process.returncode:
                    log_file = output / f"{group[0].name}.log"
                    told(
                        f"{_label(group)}: exit code {process.returncode}; {log_file} ends: {_last(log_file)}"
                    )
                yield group, None if process.returncode else perf_counter() - started
            going = [one for one in going if one not in ended]
            if not ended:
                sleep(_LOOK)
    finally:
        for _, process, _ in going:
            process.terminate()
            process.wait()


def _keep(group: Sequence[Wanted], records: Path, output: Path, told: Callable[[str], None]) -> bool:
    """Add a run to the records of its rows; False where it lacks what they ask for."""
    folder = output / group[0].name
    for one in group:
        earlier = _record(one, records)
        try:
            run = measured(one.row, one.arguments, folder)
        except (OSError, ValueError) as error:
            told(f"{one.label}: {folder} is no result of a run ({first_line(error)})")
            return False
        RowRecord(one.row.name, {**(earlier.runs if earlier else {}), one.run: run}).write(records)
        picture = folder / f"{one.row.picture}.png"
        if one.row.picture and picture.is_file():
            (records / f"{one.row.name}.png").write_bytes(picture.read_bytes())
    return True


def _label(group: Sequence[Wanted]) -> str:
    return ", ".join(one.label for one in group)


def _last(log: Path) -> str:
    """The last line that a run said."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


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
