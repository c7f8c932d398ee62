"""Measurement of the missing runs, one process per run, with a compact record of each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.reproduce.paper_row import Run
from experiments.reproduce.row_record import LOADS, RowRecord, summarize
from specexp.base.messages import first_line
from specexp.bench.experiment import baselines_of, check_experiment
from specexp.config import ConfigError, load_config
from specexp.tracking.names import PLAIN


def check_run(run: Run) -> None:
    """Raise ConfigError if the configuration of a run is wrong or lacks an arm of the row's test."""
    config = load_config(run.arguments[0], run.arguments[1:])
    arms = {PLAIN, *baselines_of(config), *(arm.title for arm in check_experiment(config))}
    for term in run.row.terms:
        key, (arm, *_) = run.row.place_of(term)
        if key == run.key and ": " not in term.figure and arm not in arms:
            raise ConfigError(f"{run.name}: every arm in the row's test must be one of {sorted(arms)}, got {arm!r}")


def measure(runs: Sequence[Run], records: Path, output: Path) -> int:
    """Make the runs and add their figures to the records of their rows; returns the number of failed runs.

    Runs with the same arguments are made once, and each run has the machine to itself. Results and the console output
    of each run (``NAME.log``) are written to ``output``.
    """
    output.mkdir(parents=True, exist_ok=True)
    shared: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        shared.setdefault(run.arguments, []).append(run)
    failed = 0
    for group in shared.values():
        code = _run(group, output)
        log = output / f"{group[0].name}.log"
        why = f"exit code {code}, see {log}" if code else _keep(group, records, output)
        print(f"{_label(group)}: {why or 'measured'}", flush=True)
        failed += bool(why)
    return failed


def _run(group: Sequence[Run], output: Path) -> int:
    """Make the first run of a group, which stands for all of them; returns its exit code."""
    arguments, name = group[0].arguments, group[0].name
    print(f"{_label(group)}: python -m specexp.run {' '.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "specexp.run", *arguments, "--output", str(output), "--name", name]
    before = os.getloadavg()[0]
    with (output / f"{name}.log").open("wb") as log:
        code = subprocess.run(command, stdout=log, stderr=log).returncode
    if (output / name).is_dir():
        (output / name / LOADS).write_text(f"{before:.1f} {os.getloadavg()[0]:.1f}")
    return code


def _keep(group: Sequence[Run], records: Path, output: Path) -> str:
    """Add a run to the records of its rows; returns an error message, empty on success."""
    folder = output / group[0].name
    for run in group:
        try:
            figures = summarize(run, folder)
        except (OSError, ValueError) as error:
            return f"{folder} must hold the results of a run ({first_line(error)})"
        record = RowRecord.read(records, run.row)
        record.runs[run.key] = figures
        record.write(records / run.row.results)
        picture = folder / f"{run.row.picture}.png"
        if run.row.picture and picture.is_file():
            (records / run.row.results / f"{run.row.name}.png").write_bytes(picture.read_bytes())
    return ""


def _label(group: Sequence[Run]) -> str:
    return ", ".join(run.name for run in group)
