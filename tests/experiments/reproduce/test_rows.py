"""The 33 rows as they are declared, and their shipped records and report."""

from contextlib import chdir
from pathlib import Path

import pytest
from pydantic import ValidationError

from experiments.reproduce.__main__ import RECORDS, main
from experiments.reproduce.paper_row import choose, overviews, paper_rows
from experiments.reproduce.report import assess, write_report

ROOT = Path(__file__).parents[3]


def test_every_table_and_figure_of_the_papers_is_a_row():
    papers = [name.partition(".")[0] for name in paper_rows()]
    assert {paper: papers.count(paper) for paper in papers} == {
        "token_recycling": 6,
        "dyspec": 9,
        "seed": 5,
        "post_use_pre_cut": 13,
    }


@pytest.mark.slow
def test_every_run_is_configured_and_its_test_names_its_arms(capsys):
    with chdir(ROOT):
        assert main(["--dry-run"]) == 0
    runs = [run for row in choose() for part in row.recorded for run in part.each_run()]
    assert [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()] == [run.name for run in runs]


def test_the_shipped_report_is_that_of_the_shipped_records(tmp_path):
    write_report(assess(choose(), ROOT / RECORDS), tmp_path, RECORDS.name)
    written = list(tmp_path.iterdir())
    assert written
    for path in written:
        assert (ROOT / RECORDS.parent / path.name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8"), (
            f"python -m experiments.reproduce --report writes experiments/{path.name} anew"
        )


def test_every_row_is_measured_or_gives_the_reason():
    assessed = assess(choose(), ROOT / RECORDS)
    assert len(assessed) == len(paper_rows())
    for one in assessed:
        assert bool(one.outcomes) != bool(one.why_not), one.row.name


def test_every_line_of_a_papers_first_table_has_figures_if_its_row_is_measured():
    rows = {one.row.name: one for one in assess(choose(), ROOT / RECORDS)}
    for paper, overview in overviews().items():
        for line in overview.lines:
            one = rows[f"{paper}.{line.row}"]
            for term in (line.tokens, line.speed) if one.outcomes else ():
                assert len(one.record.look_up(one.row, term)) == 3, line.method


def test_every_row_is_modelled_or_has_a_reason():
    assert [row.name for row in choose() if (row.modelled is None) != bool(row.not_modelled)] == []


def test_rows_are_chosen_by_name_or_by_paper(capsys):
    assert [row.name for row in choose(["dyspec.table4", "seed"])][:2] == ["dyspec.table4", "seed.table1"]
    assert main(["--only", "dyspec.tabel4", "--report"]) == 2
    error = "error: --only: unknown row 'dyspec.tabel4'; did you mean 'dyspec.table4'?\n"
    assert capsys.readouterr().err == error


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"timde": True}, "timde\n  Extra inputs are not permitted"),
        ({"test": ()}, "must have a test or not_measured"),
        ({"main": 4}, "main must be the number of one of its 3 clauses, got 4"),
        ({"not_measured": "too large"}, "must name the machine of its runs"),
        ({"machine": "a GPU"}, "must name the machine of its runs"),
        ({"modelled": {"test": ("figure('alpha', 'a') > 1",)}}, "modelled.costs\n  Field required"),
        ({"test": ("figure('alpha', 'tree')",)}, "test.0\n .* must compare a figure"),
        ({"test": ("figure('times: share', 'tree') > 1",)}, "table 'times' must be one of the row's tables"),
        ({"runs": {"a": "a.yaml", "b": "b.yaml"}}, "must begin with a run of the row: a, b"),
    ],
)
def test_a_wrong_declaration_is_refused(row_of, fields, why):
    with pytest.raises(ValidationError, match=why):
        row_of(**fields)
