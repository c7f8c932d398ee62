"""``python -m experiments.reproduce``: the tables and figures of the four papers, what is missing of them measured.

Keeps a record of every row in ``experiments/results/ROW.json``, and writes ``experiments/REPRODUCTION.md`` and
``experiments/reproduction.html`` from these.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes seconds to import
    from specexp.core.start import begin

    begin()

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.reproduce.measure import Wanted, measure, missing, wanted
from experiments.reproduce.paper_row import PaperRow, chosen
from experiments.reproduce.trend import Term
from specexp.config import Config, ConfigError, load_config
from specexp.config.command import GOES_ON, answered
from specexp.config.files import parse_overrides
from specexp.config.here import check_here
from specexp.config.told import SHOWING, telling, told
from specexp.tracking.published import NEEDS, NotPublishedError, published

if TYPE_CHECKING:
    from experiments.reproduce.told import Found
    from specexp.tracking import Tracker

ABOUT = """Reproduces the tables and figures of the four papers that specexp implements: runs what is missing, one
process a run, and writes the report. It may be stopped at any time and goes on where it was. Any other --dotted.key is
given to every run, e.g. --pair.target my/model --pair.draft my/draft --tracking.mode disabled."""
NOTHING_MEASURED = ("--tracking.",)
"""Keys that change nothing that is measured."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 1 where a run failed."""
    parser = _parser()
    options, given = parser.parse_known_args(arguments)
    showing = [one for one in given if one in SHOWING]
    with telling(showing) as found:
        found.exit_code = answered(
            lambda: _act(options, [one for one in given if one not in showing]), GOES_ON
        )
    return found.exit_code


def _act(options: argparse.Namespace, given: list[str]) -> int:
    parse_overrides(given)
    rows = chosen(options.only)
    aside = [
        place for key, value in _pairs(given) if key.startswith(NOTHING_MEASURED) for place in (key, value)
    ]
    about = [
        place
        for key, value in _pairs(given)
        if not key.startswith(NOTHING_MEASURED)
        for place in (key, value)
    ]
    records, page = Path(options.records), Path(options.page)
    if options.short:
        records = page = Path(options.output) / "short"
    runs = wanted(rows, about, options.short)
    if options.list:
        from experiments.reproduce.told import look_at

        for found in look_at(rows, records, about, options.short):
            print(f"{found.row.name}: {found.row.paper}, {found.row.place}: {found.state}")
        return 0
    if options.dry_run:
        _rehearse(runs)
        here, not_here = _here(missing(runs, records))
        states = {one.label: "missing" for one in here}
        states |= {one.label: f"cannot be run here: {why}" for one, why in not_here}
        for one in runs:
            print(f"{one.label} ({states.get(one.label, 'measured')}): {' '.join(one.arguments)}")
        return 0
    failed = 0
    if options.wandb_report and find_spec("wandb_workspaces") is None:
        raise ConfigError(f"--wandb-report: {NEEDS}")
    if not options.report:
        _rehearse(runs)
        here, not_here = _here(missing(runs, records))
        for one, why in not_here:
            print(f"{one.label}: cannot be run here: {why}")
        failed = len(not_here) + measure(here, records, Path(options.output), options.at_once, given=aside)
    _write(rows, records, page, about, aside, options)
    return min(failed, 1)


def _here(runs: Sequence[Wanted]) -> tuple[list[Wanted], list[tuple[Wanted, str]]]:
    """Runs whose models and prompts are on this machine, and the others with the reason."""
    here, not_here = list[Wanted](), list[tuple[Wanted, str]]()
    for one in runs:
        try:
            check_here(load_config(one.arguments[0], one.arguments[1:]))
            here.append(one)
        except ConfigError as error:
            not_here.append((one, str(error)))
    return here, not_here


def _rehearse(runs: Sequence[Wanted]) -> None:
    """Read the configuration of every run, and see that its arms are those of the tests.

    Raises:
        ConfigError: a file or an override is wrong, or a test names an arm that there is not.
    """
    from specexp.bench.experiment import ENGINE, baselines_of, check_experiment

    for one in runs:
        config: Config = load_config(one.arguments[0], one.arguments[1:])
        names = {ENGINE, *baselines_of(config), *(arm.title for arm in check_experiment(config))}
        for term in _terms(one.row):
            run, place = one.row.place_of(term)
            if run == one.run and ": " not in term.figure and place[0] not in names:
                raise ConfigError(
                    f"{one.label}: the test names the arm {place[0]!r}, and {one.arguments[0]} has {sorted(names)}"
                )


def _terms(row: PaperRow) -> list[Term]:
    return [term for clause in row.clauses for term in clause.terms if term.figure]


def _write(
    rows: Sequence[PaperRow],
    records: Path,
    page: Path,
    about: Sequence[str],
    aside: Sequence[str],
    options: argparse.Namespace,
) -> None:
    from experiments.reproduce.told import HTML, look_at, report
    from specexp.bench.publish import publish
    from specexp.tracking import Tracker

    every = look_at(
        chosen(()) if not options.only or not options.short else rows, records, about, options.short
    )
    modes = [str(value) for key, value in _pairs(aside) if key == "--tracking.mode"]
    entity = options.wandb_report or None
    tracker = Tracker("reproduce", Path(options.output), mode=modes[-1] if modes else None, entity=entity)
    rows_shown = {"rows": [found.row.name for found in every]}
    found = report(every, _seen_from(page, records))
    publish(found, page, tracker, kind="reproduce", config=rows_shown, page=None)
    _say(every)
    if options.wandb_report:
        _send(every, options.wandb_report, tracker, records)
    known = told()
    known.page = str(page / HTML)
    known.next = f"look at {known.page}; --only ROW measures one anew"


def _send(found: Sequence[Found], entity: str, tracker: Tracker, records: Path) -> None:
    """Publish the report at W&B too, with the pictures in a run beside it.

    Raises:
        ConfigError: W&B does not take it.
    """
    from experiments.reproduce.wandb_report import build_report

    with tracker.run("pictures", job_type="reproduce") as run:
        for one in found:
            if one.record and one.row.picture:
                run.picture(one.row.name, records / f"{one.row.name}.png")
    try:
        print(published(build_report(found, entity, tracker.project, tracker.name), "report"))
    except NotPublishedError as error:
        raise ConfigError(f"--wandb-report {entity}: {error}") from error


def _say(found: Sequence[Found]) -> None:
    """Print why rows have no verdict, each reason once."""
    for reason in dict.fromkeys(reason for one in found for reason in one.why_not):
        print(reason)


def _seen_from(page: Path, records: Path) -> str:
    try:
        return str(records.resolve().relative_to(page.resolve())) or "."
    except ValueError:
        return str(records)


def _pairs(given: Sequence[str]) -> list[tuple[str, str]]:
    """``--key value`` and ``--key=value`` as pairs."""
    found, waiting = [], list(given)
    while waiting:
        key, equals, value = waiting.pop(0).partition("=")
        found.append((key, value if equals else waiting.pop(0)))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.reproduce", description=ABOUT, allow_abbrev=False
    )
    parser.add_argument(
        "--only",
        type=lambda names: names.split(","),
        default=[],
        metavar="ROW,ROW",
        help="rows, e.g. dyspec.table4, or a whole paper, e.g. seed",
    )
    parser.add_argument(
        "--list", action="store_true", help="tell the rows and what is known of each, and stop"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check every run's configuration, tell them, and stop"
    )
    parser.add_argument(
        "--report", action="store_true", help="measure nothing, write the report of the records there are"
    )
    parser.add_argument(
        "--short", action="store_true", help="2 prompts of 8 tokens, apart from the records: a rehearsal"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=1,
        metavar="N",
        help="runs at the same time, of the rows of which no second counts; 1 by default, 2 on two idle cores",
    )
    parser.add_argument(
        "--wandb-report",
        default="",
        metavar="ENTITY",
        help="publish the report at W&B too, as this user's or team's",
    )
    parser.add_argument(
        "--records", default="experiments/results", metavar="FOLDER", help="of records and pictures"
    )
    parser.add_argument("--page", default="experiments", metavar="FOLDER", help="of the report")
    parser.add_argument(
        "--output", default="runs/reproduce", metavar="FOLDER", help="of the runs and their tables"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
