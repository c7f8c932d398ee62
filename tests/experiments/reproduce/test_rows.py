"""The 29 rows as they are declared, and the records and the report that are shipped of them."""

from contextlib import chdir
from pathlib import Path

import pytest

from experiments.reproduce.__main__ import main
from experiments.reproduce.measure import SHORT, wanted
from experiments.reproduce.paper_row import chosen, paper_rows
from experiments.reproduce.told import look_at, report
from specexp.bench.publish import files_of
from specexp.config import ConfigError

ROOT = Path(__file__).parents[3]
RESULTS, PAGES = ROOT / "experiments" / "results", ROOT / "experiments"


def test_every_table_and_figure_that_can_be_addressed_is_a_row():
    papers = [name.partition(".")[0] for name in paper_rows()]
    assert {paper: papers.count(paper) for paper in papers} == {
        "token_recycling": 6,
        "dyspec": 9,
        "seed": 4,
        "post_use_pre_cut": 10,
    }


def test_every_rows_runs_are_configured_and_its_test_names_their_arms(capsys):
    """Files and overrides are read, as they would be before anything is measured."""
    with chdir(ROOT):
        assert main(["--dry-run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(wanted(chosen(()), (), short=False))


def test_a_row_whose_prompts_are_not_here_is_told_before_anything_is_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: not str(path).startswith("data/"))
    with chdir(ROOT):
        given = ["--only", "post_use_pre_cut.table1", "--records", str(tmp_path), "--page", str(tmp_path)]
        other = ["--data.prompts.init_args.path", "other.jsonl"]  # the row's own goes before it
        assert main([*given, "--tracking.mode", "disabled", "--output", str(tmp_path), *other]) == 1
    said = capsys.readouterr().out
    assert (
        "post_use_pre_cut.table1: cannot be run here: command line: data.prompts.init_args.path: data/"
        in said
    )


def test_the_shipped_report_is_that_of_the_shipped_records():
    """A figure that changes without its record, or a record without its figure, shows here."""
    for name, content in files_of(report(look_at(chosen(()), RESULTS), "results")).items():
        assert (PAGES / name).read_text(encoding="utf-8") == content, (
            f"experiments/{name} is not what the records say: python -m experiments.reproduce --report writes it"
        )


def test_shipped_records_are_of_rows():
    known = {one.name for row in paper_rows().values() for one in (row, *row.measured_causes)}
    assert [path.name for path in RESULTS.glob("*.json") if path.stem not in known] == []


def test_every_row_is_measured_and_one_that_does_not_agree_tells_a_cause_that_holds():
    for one in look_at(chosen(()), RESULTS):
        assert one.record is not None, one.why_not
        if not one.state.startswith("agrees"):
            assert one.cause is not None, one.row.name
            assert one.cause.outcomes, (one.row.name, one.cause.why_not)
            assert all(outcome.holds for outcome in one.cause.outcomes), (one.row.name, one.cause.outcomes)


def test_rows_are_chosen_by_name_or_by_paper():
    assert [row.name for row in chosen(["dyspec.table4", "seed"])][:2] == ["dyspec.table4", "seed.table1"]
    with pytest.raises(
        ConfigError, match=r"--only: there is no row 'dyspec.tabel4'; did you mean 'dyspec.table4'\?"
    ):
        chosen(["dyspec.tabel4"])


def test_short_runs_and_overrides_replace_what_a_row_says():
    row = paper_rows()["token_recycling.table1"]
    (first, *_) = wanted([row], ["--pair.target", "my/model"], short=True)
    assert first.arguments[:3] == ("experiments/token_recycling/train_free.yaml", "--pair.target", "my/model")
    assert first.arguments.count("--data.max_prompts") == 1
    assert first.arguments[first.arguments.index("--data.max_prompts") + 1] == SHORT[1]
