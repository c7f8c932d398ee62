"""What a run leaves becomes a compact record, and a record that is not of today's row or pair does not count."""

import dataclasses
import json

import pytest

from specexp.bench.record import PromptRecord, write_records
from specexp.reproduce import row_record
from specexp.reproduce.__main__ import main
from specexp.reproduce.measure import Wanted, missing
from specexp.reproduce.paper_row import PaperRow
from specexp.reproduce.row_record import RowRecord, RowRecordError, measured, pair_of
from specexp.reproduce.told import NOT_MEASURED, look_at, report
from specexp.reproduce.trend import Clause

ROW = PaperRow(
    "dyspec.made",
    "DySpec",
    "Table 0",
    "Trees give more.",
    "3 and 2",
    {"": ("experiments/made.yaml",)},
    (
        Clause.of("tokens_per_step{tree} > tokens_per_step{engine}"),
        Clause.of("speedup{tree | b} > 1.5"),
        Clause.of("sizes: share{tree / 64} > 0.4"),
    ),
    ("sizes",),
)
ENVIRONMENT = {
    "time": "2026-01-01T00:00:00+00:00", "git_commit": None, "git_dirty": None, "device": "cpu", "device_name": "a CPU",
    "cpu_count": 2, "threads": 1, "packages": {"torch": "2", "transformers": "5"},
}  # fmt: skip


def answers(arm, prompt, steps, seconds, category):
    return PromptRecord(
        arm, str(prompt), category, token_ids=tuple(range(12)), turn_tokens=(12,), steps=steps, decode_tokens=12,
        decode_seconds=seconds, dtype="float32", device="cpu", verifier="Greedy",
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Of a run: the tree takes a third of the steps, and half the time; its table has a row of each size."""
    records = [
        answers(arm, prompt, steps, seconds, "ab"[prompt % 2])
        for prompt in range(6)
        for arm, steps, seconds in (("engine", 12, 2.0), ("tree", 4, 1.0))
    ]
    run = tmp_path / "run"
    run.mkdir()
    write_records(run / "records.jsonl", records)
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT))
    table = "arm,nodes,share,share low,share high\ntree,32,0.9,0.8,1.0\ntree,64,0.5,,\n"
    (run / "sizes.csv").write_text(table + '"tree, C4 (not run here)",64,0.1,,\n')
    return run


@pytest.fixture
def kept(folder, tmp_path):
    """A folder of records with that of the run."""
    records = tmp_path / "records"
    RowRecord(ROW.name, {"": measured(ROW, ROW.runs[""], folder)}).write(records)
    return records


def changed(kept, **values):
    path = kept / f"{ROW.name}.json"
    content = json.loads(path.read_text())
    content["runs"][""].update(values)
    path.write_text(json.dumps(content))
    return kept


def test_figures_of_arms_categories_and_tables_are_kept_with_their_intervals(kept):
    run = RowRecord.read(kept, ROW).runs[""]
    assert run["arms"]["tree"]["tokens_per_step"] == [3.0, 3.0, 3.0]
    assert run["arms"]["tree"]["speedup"] == pytest.approx([2.0, 2.0, 2.0])
    assert list(run["categories"]) == ["b"]  # the one the test asks for
    assert run["tables"]["sizes"] == {"tree / 32": {"share": [0.9, 0.8, 1.0]}, "tree / 64": {"share": 0.5}}
    assert (run["prompts"], run["clock"], run["command"]) == (
        6,
        "measured",
        "python -m specexp.run experiments/made.yaml",
    )


def test_a_report_says_every_test_with_its_figures_and_where_they_are_from(kept):
    (found,) = look_at([ROW], kept)
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
def test_a_record_of_something_else_does_not_count_and_is_measured_again(kept, monkeypatch, values, sentence):
    monkeypatch.setattr(row_record, "_in_history", lambda commit: False)
    (found,) = look_at([ROW], changed(kept, **values))
    assert found.state == NOT_MEASURED
    assert sentence in found.why_not[0]
    assert missing([Wanted(ROW, "", ROW.runs[""])], kept)


def test_what_is_measured_is_not_missing(kept):
    assert missing([Wanted(ROW, "", ROW.runs[""])], kept) == []


def test_another_test_is_another_declaration_and_a_reason_told_later_is_not():
    other = dataclasses.replace(ROW, clauses=(Clause.of("alpha{tree} > 1"),))
    assert other.declaration != ROW.declaration
    assert dataclasses.replace(ROW, reason="the pair is small").declaration == ROW.declaration


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1, "row": "seed.table1", "runs": {}}'])
def test_a_file_that_is_no_record_of_the_row_is_told(kept, text):
    (kept / f"{ROW.name}.json").write_text(text)
    with pytest.raises(RowRecordError, match=r"dyspec\.made\.json is"):
        RowRecord.read(kept, ROW)
    assert look_at([ROW], kept)[0].state == NOT_MEASURED


def test_a_figure_that_the_record_lacks_is_told(kept):
    row = dataclasses.replace(ROW, clauses=(Clause.of("alpha{wide} > 0.5"),))
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
