"""Results of a run become a compact record. A record of another pair, declaration or history does not count."""

import pytest

from experiments.reproduce import row_record
from experiments.reproduce.report import NOT_MEASURED, assess, markdown
from experiments.reproduce.row_record import RowRecord, summarize
from specexp.config import ConfigError


@pytest.fixture
def record(tmp_path, leave_results, row_of):
    """Write a record of the row; returns its folder."""

    def write(row, **changed):
        (run,) = row.each_run()
        figures = {**summarize(run, leave_results(tmp_path / "run")), **changed}
        RowRecord(row=row.name, runs={"": figures}).write(tmp_path / "records")
        return tmp_path / "records"

    return write


def test_figures_of_arms_categories_and_tables_are_kept_with_their_intervals(record, row_of):
    run = RowRecord.read(record(row_of()), row_of()).runs[""]
    assert run["arms"]["tree"]["tokens_per_step"] == [3.0, 3.0, 3.0]
    assert run["arms"]["tree"]["speedup"] == pytest.approx([2.0, 2.0, 2.0])
    assert list(run["categories"]) == ["b"]  # the one that the test names
    assert run["tables"]["sizes"] == {"tree / 32": {"share": [0.9, 0.8, 1.0]}, "tree / 64": {"share": 0.5}}
    assert (run["prompts"], run["clock"]) == (6, "measured")
    assert run["command"] == "python -m specexp.run experiments/made.yaml"


def test_the_report_shows_every_test_with_its_figures_and_conditions(record, row_of):
    (found,) = assess([row_of()], record(row_of()))
    assert found.state == "agrees"
    page = markdown([found], "results")
    assert "tokens_per_step of tree 3 [3, 3] > tokens_per_step of engine 1 [1, 1]: holds" in page
    assert "`python -m specexp.run experiments/made.yaml`: 6 prompts, measured, 2026-01-01, no commit" in page
    assert "![dyspec.made](results/dyspec.made.png)" in page


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"pair": {"target": "other", "digest": "0123"}},
            "of another pair (other, 0123) than today's (stdlib, ",
        ),
        ({"declaration": "0"}, "of another declaration of its runs and test; measure it again"),
        ({"commit": "0" * 40}, "of commit 000000000, which is not in this history; measure it again"),
    ],
)
def test_a_record_of_something_else_does_not_count(record, row_of, monkeypatch, changed, why):
    monkeypatch.setattr(row_record, "_in_history", lambda commit: False)
    (found,) = assess([row_of()], record(row_of(), **changed))
    assert found.state == NOT_MEASURED
    assert why in found.why_not
    assert why in markdown([found], "results")


def test_a_cause_is_tested_on_the_record_of_its_row(record, row_of, tmp_path):
    test = ("figure('tokens_per_step', 'tree') > 2.5", "figure('sizes: share', 'tree / 32') < 0.5")
    row = row_of(cause={"claim": "Trees are dear.", "test": test})
    (found,) = assess([row], record(row))
    assert [outcome.holds for outcome in found.cause.outcomes] == [True, False]
    assert "- Why: Trees are dear.\n  - tokens_per_step of tree 3" in markdown([found], "results")
    (found,) = assess([row], tmp_path / "empty")
    assert (found.cause.state, found.cause.outcomes) == (NOT_MEASURED, ())


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2, "row": "dyspec.made", "runs": {}}'])
def test_a_file_that_is_not_a_record_is_refused(tmp_path, text, row_of):
    (tmp_path / "dyspec.made.json").write_text(text)
    with pytest.raises(ConfigError, match=r"dyspec\.made\.json: must be the record of a row"):
        RowRecord.read(tmp_path, row_of())
