"""What a run leaves becomes a compact record, and a record that is not of today's row or pair does not count."""

import dataclasses
import json

import pytest

from experiments.reproduce import row_record
from experiments.reproduce.__main__ import main
from experiments.reproduce.measure import Wanted, missing, wanted
from experiments.reproduce.row_record import RowRecord, RowRecordError, measured, pair_of
from experiments.reproduce.told import NOT_MEASURED, look_at, report, row_markdown
from experiments.reproduce.trend import Clause


@pytest.fixture
def folder(tmp_path, leave_results):
    return leave_results(tmp_path / "run")


@pytest.fixture
def kept(folder, tmp_path, row):
    """A folder of records with that of the run."""
    records = tmp_path / "records"
    RowRecord(row.name, {"": measured(row, row.runs[""], folder)}).write(records)
    return records


def changed(kept, **values):
    (path,) = kept.glob("*.json")
    content = json.loads(path.read_text())
    content["runs"][""].update(values)
    path.write_text(json.dumps(content))
    return kept


def test_figures_of_arms_categories_and_tables_are_kept_with_their_intervals(kept, row):
    run = RowRecord.read(kept, row).runs[""]
    assert run["arms"]["tree"]["tokens_per_step"] == [3.0, 3.0, 3.0]
    assert run["arms"]["tree"]["speedup"] == pytest.approx([2.0, 2.0, 2.0])
    assert list(run["categories"]) == ["b"]  # the one the test asks for
    assert run["tables"]["sizes"] == {"tree / 32": {"share": [0.9, 0.8, 1.0]}, "tree / 64": {"share": 0.5}}
    assert (run["prompts"], run["clock"], run["command"]) == (
        6,
        "measured",
        "python -m specexp.run experiments/made.yaml",
    )


def test_a_report_says_every_test_with_its_figures_and_where_they_are_from(kept, row):
    (found,) = look_at([row], kept)
    assert found.state == "agrees"
    page = report([found], "results").files["REPRODUCTION.md"]
    assert "tokens_per_step of tree 3 [3, 3] > tokens_per_step of engine 1 [1, 1]: holds" in page
    assert "`python -m specexp.run experiments/made.yaml`: 6 prompts, measured, 2026-01-01, no commit" in page
    assert "![dyspec.made](results/dyspec.made.png)" in page
    html = report([found], "results").files["reproduction.html"]
    assert '<section id="dyspecmade"' in html
    assert "<p>Here: agrees</p>" in html
    assert "tokens_per_step of tree 3 [3, 3] &gt; tokens" in html


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"pair": {"target": "other", "digest": "0123"}},
            "is of another pair (other, 0123) than today's (stdlib, ",
        ),
        ({"declaration": "0"}, "is of another declaration of its runs and test; measure it again"),
        ({"commit": "0" * 40}, "is of commit 000000000, which is not in this history; measure it again"),
    ],
)
def test_a_record_of_something_else_does_not_count_and_is_measured_again(
    kept, monkeypatch, values, sentence, row
):
    monkeypatch.setattr(row_record, "_in_history", lambda commit: False)
    (found,) = look_at([row], changed(kept, **values))
    assert found.state == NOT_MEASURED
    assert sentence in found.why_not[0]
    assert missing([Wanted(row, "", row.runs[""])], kept)


def test_what_is_measured_is_not_missing(kept, row):
    assert missing([Wanted(row, "", row.runs[""])], kept) == []


def test_another_test_is_another_declaration_and_a_reason_told_later_is_not(row):
    other = dataclasses.replace(row, clauses=(Clause.of("alpha{tree} > 1"),))
    assert other.declaration != row.declaration
    assert dataclasses.replace(row, cause=row).declaration == row.declaration


def test_a_cause_is_tested_on_the_rows_own_runs(kept, row):
    clauses = (Clause.of("tokens_per_step{tree} > 2.5"), Clause.of("sizes: share{tree / 32} < 0.5"))
    cause = dataclasses.replace(row, claim="Trees are dear.", clauses=clauses)
    (found,) = look_at([dataclasses.replace(row, cause=cause)], kept)
    assert [outcome.holds for outcome in found.cause.outcomes] == [True, False]
    told = "\n".join(row_markdown(found))
    assert "- Why: Trees are dear.\n  - tokens_per_step of tree 3" in told
    (kept / f"{row.name}.json").unlink()
    (found,) = look_at([dataclasses.replace(row, cause=cause)], kept)
    assert (found.cause.state, found.cause.outcomes) == (NOT_MEASURED, ())


def test_a_cause_with_runs_of_its_own_is_measured_like_a_row(kept, row):
    cause = dataclasses.replace(row, name=f"{row.name}.cause", runs={"": ("experiments/other.yaml",)})
    row = dataclasses.replace(row, cause=cause)
    assert [one.label for one in wanted([row], (), short=False)] == ["dyspec.made", "dyspec.made.cause"]
    assert [one.label for one in missing(wanted([row], (), short=False), kept)] == ["dyspec.made.cause"]
    (found,) = look_at([row], kept)
    assert found.outcomes
    assert found.cause.why_not == ["the record of dyspec.made.cause is not measured yet"]


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1, "row": "seed.table1", "runs": {}}'])
def test_a_file_that_is_no_record_of_the_row_is_told(kept, text, row):
    (kept / f"{row.name}.json").write_text(text)
    with pytest.raises(RowRecordError, match=r"dyspec\.made\.json is"):
        RowRecord.read(kept, row)
    assert look_at([row], kept)[0].state == NOT_MEASURED


def test_a_figure_that_the_record_lacks_is_told(kept, row):
    row = dataclasses.replace(row, clauses=(Clause.of("alpha{wide} > 0.5"),))
    changed(kept, declaration=row.declaration)
    (found,) = look_at([row], kept)
    assert found.why_not[0].startswith("the record of dyspec.made has no alpha of wide")


def test_a_pair_is_known_by_its_files():
    stdlib = pair_of(["experiments/made.yaml"])
    assert stdlib["target"] == "stdlib"
    assert len(stdlib["digest"]) == 16
    assert pair_of(["x.yaml", "--pair.target", "my/model"]) == {"target": "my/model", "digest": ""}


def test_an_unknown_row_is_one_sentence(capsys):
    assert main(["--only", "dyspec.tabel1", "--report"]) == 2
    assert (
        capsys.readouterr().err
        == "error: --only: there is no row 'dyspec.tabel1'; did you mean 'dyspec.table1'?\n"
    )
