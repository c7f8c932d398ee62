"""Results of a run become a compact record. A record of another pair, declaration or history does not count."""

import json
from pathlib import Path

import pytest

from experiments.reproduce import report, row_record
from experiments.reproduce.paper_row import Overview
from experiments.reproduce.report import NOT_MEASURED, assess, markdown, write_report
from experiments.reproduce.row_record import RowRecord, json_text, summarize
from experiments.reproduce.trend import Term
from specexp.config import ConfigError


@pytest.fixture
def record(tmp_path, leave_results, row_of):
    """Write a record of the row; returns its folder."""

    def write(row, **changed):
        (run,) = row.each_run()
        figures = {**summarize(run, leave_results(tmp_path / "run")), **changed}
        RowRecord(row=row.name, runs={"": figures}).write(tmp_path / "records" / row.results)
        return tmp_path / "records"

    return write


def test_a_record_is_json_with_a_line_for_each_list_of_figures():
    value = {"arms": {"a [\n 1\n ]": [1.5, 1.25, 2.0]}, "names": ["x", "y"], "none": [], "rows": [[1, 2], [3, 4]]}
    text = json_text(value)
    assert json.loads(text) == value
    lines = [line.strip(" ,") for line in text.splitlines()]
    assert [line for line in lines if "]" in line and "\\n" not in line] == ["]", '"none": []', "[1, 2]", "[3, 4]", "]"]
    assert '"a [\\n 1\\n ]": [1.5, 1.25, 2.0]' in lines


def test_figures_of_arms_categories_and_tables_are_kept_with_their_intervals(record, row_of):
    run = RowRecord.read(record(row_of()), row_of()).runs[""]
    assert run["arms"]["tree"]["tokens_per_step"] == [3.0, 3.0, 3.0]
    assert run["arms"]["tree"]["speedup"] == pytest.approx([2.0, 2.0, 2.0])
    assert list(run["categories"]) == ["b"]  # the one that the test names
    assert run["tables"]["sizes"] == {"tree / 32": {"share": [0.9, 0.8, 1.0]}, "tree / 64": {"share": 0.5}}
    assert (run["prompts"], run["clock"]) == (6, "measured")
    assert run["command"] == "python -m specexp.run experiments/made.yaml"


def test_an_interval_over_prompts_is_widened_by_the_prompts_of_its_category(record, row_of):
    row = row_of()
    found = RowRecord.read(record(row), row)
    run = found.runs[""]
    assert (run["prompts"], run["category_prompts"]) == (6, {"b": 3})
    run["arms"]["tree"]["speedup"] = run["categories"]["b"]["tree"]["speedup"] = [2.0, 1.9, 2.1]
    whole, category = (found.look_up(row, Term("speedup", place))[2] / 2 for place in (("tree",), ("tree", "b")))
    assert 2.1 / 2 < whole < category
    assert found.look_up(row, Term("sizes: share", ("tree / 32",))) == [0.9, 0.8, 1.0]  # not of prompts


def test_the_report_shows_every_test_with_its_figures_and_conditions(record, row_of):
    (found,) = assess([row_of()], record(row_of()))
    assert found.state == "agrees (3 of 3 hold)"
    page = markdown([found], "papers")
    assert "tokens_per_step of tree 3 [3, 3] > tokens_per_step of plain 1 [1, 1] (ratio 3 [3, 3]): holds" in page
    assert "`python -m specexp.run experiments/made.yaml`: 6 prompts, measured, 2026-01-01, no commit" in page
    assert "![dyspec.made](papers/dyspec/results/dyspec.made.png)" in page


def test_a_papers_table_has_its_figures_beside_ours_and_the_page_opens_with_what_is_faster(record, row_of, monkeypatch):
    def line(arm):
        terms = {"tokens": ["tokens_per_step", arm], "speed": ["throughput", arm]}
        return {"method": f"the {arm}", "paper": ["2.5", ""], "row": "made", **terms}

    lines = [{**line("tree"), "simulated": "1.7x"}, line("bush")]
    made = Overview.model_validate({"paper": "DySpec", "text": "Trees differ.", "lines": lines})
    monkeypatch.setattr(report, "overviews", lambda: {"dyspec": made})
    page = markdown(assess([row_of()], record(row_of())), "papers")
    assert "by the interval: the tree (DySpec) 2 [2, 2]x.**" in page
    assert "| the tree | 2.5 | - | 3 [3, 3] | 2 [2, 2] | - | - | 1.7x |" in page
    assert "| the bush | 2.5 | - | - | - | - | - | - |\n\nTrees differ." in page
    assert "- Loops: 0.0% of plain decoding's answers, of other arms up to 0.0%" in page


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"pair": {"target": "other", "digest": "0123"}},
            "of another pair (other, 0123) than today's; measure it again",
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
    assert why in markdown([found], "papers")


def test_a_modelled_test_is_tested_on_the_record_of_its_row(record, row_of):
    priced = ("figure('tokens_per_step', 'tree') / 1.5 > figure('tokens_per_step', 'plain')",)
    row = row_of(modelled={"costs": "a step takes 1.5", "source": "published", "test": priced})
    (found,) = assess([row], record(row))
    assert found.state_of("modelled") == "agrees (1 of 1 hold) (published costs)"
    assert [list(outcome.ratios.values()) for outcome in found.parts["modelled"].outcomes] == [[[2.0, 2.0, 2.0]]]
    page = markdown([found], "papers")
    assert "- Modelled: **agrees (1 of 1 hold) (published costs)**. Costs: a step takes 1.5\n" in page


@pytest.mark.parametrize(
    ("clause", "shown"),
    [
        ("figure('tokens_per_step', 'tree') / 1.5 > 2 * figure('tokens_per_step', 'plain')", "(ratio 1 [1, 1])"),
        ("figure('tokens_per_step', 'tree') / 1.5 > 1", "/ 1.5 > 1 (ratio 2 [2, 2]): holds\n"),
        ("figure('sizes: share', 'tree / 32') > 0.6", "> 0.6 (ratio 1.5 [1.333, 1.667]): holds\n"),
        ("figure('sizes: share', 'tree / 64') > 0.4", "> 0.4 (difference 0.1): holds, without an interval\n"),
    ],
)
def test_a_clause_has_the_ratio_that_was_recorded_of_its_figures_at_any_cost(record, row_of, clause, shown):
    row = row_of(modelled={"costs": "some", "source": "published", "declared_after": "it", "test": (clause,)})
    assert shown in markdown(assess([row], record(row_of())), "papers")


def test_a_row_and_its_parts_print_the_papers_effect_and_what_the_sample_could_show(record, row_of):
    part = {"costs": "some", "source": "published", "test": ("figure('tokens_per_step', 'tree') / 1.5 > 1",)}
    row = row_of(effect=1.4, modelled={**part, "declared_after": "it", "effect": 1.7})
    page = markdown(assess([row], record(row_of())), "papers")
    for effect in (1.4, 1.7):
        assert f"  - the paper's ratio in the main clause is {effect}; the sample could show 1.00 or more\n" in page


def test_a_matched_test_has_a_record_of_its_own_run(record, row_of, tmp_path):
    near = {"costs": "published", "source": "published", "runs": "experiments/near.yaml"}
    row = row_of(matched={**near, "test": ("figure('tokens_per_step', 'tree') > 1",)})
    (found,) = assess([row], record(row))
    assert found.state_of("matched") == f"{NOT_MEASURED} (published costs)"
    part = RowRecord(row="dyspec.made.matched", runs=RowRecord.read(record(row), row).runs)
    part.runs[""]["declaration"] = row.matched.declaration
    part.write(record(row) / row.results)
    (found,) = assess([row], record(row))
    assert found.state_of("matched") == "agrees (1 of 1 hold) (published costs)"
    assert found.state_of("modelled") == "not modelled"


def test_a_row_without_a_test_has_a_reason_and_untestable_parts_are_counted_separately(row_of):
    row = row_of(
        test=(),
        not_measured="it has 70B parameters",
        machine="a GPU",
        not_modelled="so is this",
        untestable={"speed": "no GPU"},
    )
    (found,) = assess([row], Path("nowhere"))
    assert (found.state, found.state_of("modelled")) == ("not measured here", "not modelled")
    page = markdown([found], "papers")
    assert "it has 70B parameters\n  - on a GPU:\n  - `python -m specexp.run experiments/made.yaml`" in page
    assert "1 parts of claims cannot be tested here" in page
    assert "- Untestable here: speed: no GPU" in page


def test_verdicts_are_a_json_file_with_figures_and_ratios(record, row_of, tmp_path):
    write_report(assess([row_of(not_modelled="counts")], record(row_of())), tmp_path, "papers")
    (verdict,) = json.loads((tmp_path / "verdicts.json").read_text())
    assert verdict["modelled"] == {"verdict": "not modelled", "why_not": "counts"}
    first, second, _ = verdict["measured"]["clauses"]
    assert first["figures"]["tokens_per_step of tree"] == [3.0, 3.0, 3.0]
    ratio = "figure('tokens_per_step', 'tree') over figure('tokens_per_step', 'plain')"
    assert first["ratios"] == {ratio: [3.0, 3.0, 3.0]}
    assert (second["holds"], second["within_noise"]) == (True, False)


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2, "row": "dyspec.made", "runs": {}}'])
def test_a_file_that_is_not_a_record_is_refused(tmp_path, text, row_of):
    (folder := tmp_path / "dyspec/results").mkdir(parents=True)
    (folder / "dyspec.made.json").write_text(text)
    with pytest.raises(ConfigError, match=r"dyspec\.made\.json: must be the record of a row"):
        RowRecord.read(tmp_path, row_of())


def test_the_pair_of_a_run_is_that_of_its_files_and_arguments():
    file = str(Path(__file__).parents[3] / "experiments/papers/token_recycling/smollm2.yaml")
    assert row_record.pair_of_run((file,))["target"] == "smollm2"
    drafted = row_record.pair_of_run((file, "--pair.target", "stdlib", "--pair.draft", "stdlib-small"))
    assert (drafted["target"], drafted["draft"]) == ("stdlib", "stdlib-small")
