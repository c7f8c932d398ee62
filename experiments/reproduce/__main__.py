"""``python -m experiments.reproduce``: reproduce the tables and figures of the four papers, measuring missing ones.

The command keeps a record of every row in ``experiments/papers/PAPER/results/ROW.json``, and writes
``experiments/REPRODUCTION.md`` and ``experiments/verdicts.json`` from the records.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from specexp.base.start import begin

    begin()

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.reproduce.measure import check_run, measure
from experiments.reproduce.paper_row import KINDS, choose
from experiments.reproduce.report import assess, count, write_report
from experiments.reproduce.row_record import RowRecord
from experiments.results_site import PAGE, write_page
from specexp.config.command import GOES_ON, answered

ABOUT = """Reproduce the tables and figures of the four papers that specexp implements: make the missing runs, one
process per run, and write the report. The command may be stopped at any time; started again, it continues."""
RECORDS = Path("experiments/papers")
OUTPUT = Path("runs/reproduce")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 1 if a run failed."""
    parser = argparse.ArgumentParser("python -m experiments.reproduce", description=ABOUT)
    add = parser.add_argument
    add("--only", default="", metavar="ROW,...", help="rows (e.g. dyspec.table4) or papers (e.g. seed); default: all")
    add("--list", action="store_true", help="print the rows and their states, then exit")
    add("--dry-run", action="store_true", help="check and print every run, then exit")
    add("--report", action="store_true", help="write the report without measuring")
    options = parser.parse_args(arguments)
    return answered(lambda: _act(options), GOES_ON)


def _act(options: argparse.Namespace) -> int:
    rows, failed = choose(options.only.split(",") if options.only else ()), 0
    if options.list:
        for one in assess(rows, RECORDS):
            states = "; ".join([one.state, *map(one.state_of, KINDS)])
            print(f"{one.row.name}: {one.row.paper}, {one.row.place}: {states}")
        return 0
    if not options.report:
        runs = [run for row in rows for part in row.recorded for run in part.each_run()]
        here = [run for run in runs if not run.row.not_measured]
        needed = [run for run in here if RowRecord.read(RECORDS, run.row).why_not(run)]
        for run in runs:
            check_run(run)
            if options.dry_run:
                state = "missing" if run in needed else "measured" if run in here else "not measured here"
                print(f"{run.name} ({state}): {' '.join(run.arguments)}")
        if options.dry_run:
            return 0
        failed = measure(needed, RECORDS, OUTPUT)
    found = assess(choose(), RECORDS)
    write_report(found, RECORDS.parent, RECORDS.name)
    if PAGE.is_file():  # in a clone
        print(write_page())
    for one in found:
        if one.why_not:
            print(f"{one.row.name}: {one.why_not}")
    states = count([one.state for one in found])
    print(f"Of {len(found)} tables and figures: {states} See {RECORDS.parent / 'REPRODUCTION.md'}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
