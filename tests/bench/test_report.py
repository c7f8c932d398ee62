"""Tables say in three forms what the records say, and mark what must be marked."""

import csv
import dataclasses
import io

import pytest
from helpers.made_records import PHASES, record
from rich.console import Console

from specexp.bench.pictures import Curve, parameter_curves, phase_bars, speedup_bars
from specexp.bench.report import category_table, long_table, phase_table, results_table
from specexp.bench.statistics import breakdown


@pytest.fixture
def records():
    shares = dict(zip(PHASES, (0.1, 0.05, 0.7, 0.05, 0.05, 0.05), strict=True))
    made = []
    for prompt in range(8):
        made += [
            record("engine", prompt, 1.0),
            record("hf-eager", prompt, 2.0, decode_tokens=3),
            record("tree", prompt, 0.5, steps=2, drafted_nodes=20, state="cold", seconds=shares),
            record("wrong", prompt, 0.5, token_ids=(1, 2, 3, 4)),
            record("loose", prompt, 0.5, token_ids=(1,), lossless=False, keyed=False, verifier="Typical"),
        ]
    return made


def cell(table, arm, title):
    titles = [column.title for column in table.columns]
    return next(row for row in table.shown() if row[0] == arm)[titles.index(title)]


def test_results(records):
    published = [{"method": "Lookahead", "tokens_per_step": 1.64, "speedup": 1.27, "source": "Table 1"}]
    table = results_table(records, "Which?", published=published)
    assert cell(table, "tree", "vs engine") == "2.00x [2.00, 2.00]"
    assert cell(table, "tree", "vs hf-eager") == "5.33x [5.33, 5.33]"
    assert cell(table, "tree", "tokens/step") == "2.00"
    assert cell(table, "tree", "state") == "cold"
    assert cell(table, "tree", "equal outputs") == "8/8"
    assert cell(table, "engine", "vs engine") == "-"
    assert cell(table, "engine", "equal outputs") == "reference"
    assert cell(table, "wrong", "vs engine") == (
        "refused: 8 of 8 outputs differ from engine's other than at a near tie"
    )
    assert cell(table, "wrong", "equal outputs") == "0/8, 8 DIFFER"
    assert cell(table, "loose (LOSSY)", "equal outputs") == "not compared"
    assert cell(table, "Lookahead (not run here)", "vs hf-eager") == "1.27x published"
    assert any("Not run here: figures as published by Table 1" in note for note in table.notes)
    assert any("Target in bfloat16 on cpu, verifier Greedy." in note for note in table.notes)


def test_the_three_forms_hold_the_same_rows(records):
    table = results_table(records, "Which [one]?")
    markdown = table.to_markdown()
    console = Console(width=250, file=io.StringIO())
    console.print(table.to_rich())
    terminal = console.file.getvalue()
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert len(rows) == len(table.rows) == 5
    assert "Which [one]?" in terminal
    for row in table.shown():
        for shown in row[:6]:
            assert shown in markdown
            assert shown in terminal
    assert float(rows[2]["vs engine"]) == pytest.approx(2)
    assert rows[3]["vs engine refused"].startswith("8 of 8 outputs differ")
    assert rows[3]["vs engine low"] == ""


def test_by_category(records):
    table = category_table(records)
    assert [column.title for column in table.columns] == ["arm", "a", "b", "all"]
    assert cell(table, "tree", "a") == "2.00x (2.00)"
    assert cell(table, "wrong", "all") == "refused (1.00)"
    assert category_table([r for r in records if r.category == "a"]) is None


def test_categories_of_few_prompts_are_told_together(records):
    few = [
        dataclasses.replace(r, category=f"few{r.prompt_id}") if r.prompt_id in ("p0", "p1") else r
        for r in records
    ]
    table = category_table(few)
    assert [column.title for column in table.columns] == ["arm", "a", "b", "others", "all"]
    assert table.notes[1] == "Others, of fewer than 3 prompts each: fewp0, fewp1."
    assert category_table([dataclasses.replace(r, category=r.prompt_id) for r in records]) is None


def test_published_figures_of_other_categories_are_notes(records):
    theirs = [
        {"method": "theirs", "category": name, "speedup": 2.0 + n} for n, name in enumerate(("qa", "rag"))
    ]
    table = category_table(records, published=theirs)
    assert len(table.rows) == 5
    assert "theirs (not run here): qa 2.00x, rag 3.00x." in table.notes


def test_csv_has_every_arm_in_every_category(records):
    rows = list(csv.DictReader(io.StringIO(long_table(records).to_csv())))
    assert {(row["arm"], row["category"]) for row in rows} == {
        (arm, category)
        for arm in ("engine", "hf-eager", "tree", "wrong", "loose")
        for category in ("all", "a", "b")
    }
    tree = next(row for row in rows if (row["arm"], row["category"]) == ("tree", "b"))
    assert (tree["prompts"], tree["equal"], tree["wrong"]) == ("4", "4", "0")


def test_the_phases_add_up(records):
    part = breakdown(records, "tree")
    assert sum(part.shares.values()) == pytest.approx(1)
    assert part.step_seconds == pytest.approx(0.5)
    assert part.outside_forward == pytest.approx(0.3)
    assert breakdown(records, "hf-eager") is None
    table = phase_table(records)
    assert cell(table, "tree", "target") == "70.0 %"
    assert cell(table, "tree", "outside forward passes") == "30.0 %"


def test_a_draft_models_answers_count_as_forward_passes():
    shares = dict(zip(PHASES, (0.2, 0.0, 0.7, 0.1, 0.0, 0.0), strict=True))
    part = breakdown([record("draft", 0, 1.0, seconds=shares, draft_passes=4)], "draft")
    assert part.outside_forward == pytest.approx(0.1)


def test_a_run_in_which_everything_failed_has_a_table():
    failed = [record(arm, 0, token_ids=(), error="ValueError: no") for arm in ("engine", "tree")]
    table = results_table(failed)
    assert cell(table, "tree", "vs engine") == "refused: no prompt was answered by both tree and engine"
    assert table.notes == ["Every prompt failed; the first said: ValueError: no."]
    speedup_bars(failed)


def test_figures_are_drawn(records, tmp_path):
    speedup_bars(records, title="Which?", published={"Lookahead": 1.27}).savefig(tmp_path / "a.png")
    curve = Curve("nodes", "nodes", [(8, "tree"), (16, "wrong"), (32, "tree")])
    figure = parameter_curves(records, [curve], title="How many?")
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "nodes"]
    other = Curve("others", "nodes", [(8, "wrong"), (512, "tree")])
    top, bottom = parameter_curves(records, [curve, other]).axes
    assert [text.get_text() for text in bottom.get_legend().get_texts()] == ["nodes", "others"]
    assert [text.get_text() for text in top.get_xticklabels()] == ["8", "16", "32", "512"]
    figure.savefig(tmp_path / "b.png")
    bars = phase_bars(records, title="Where?")
    (axes,) = bars.axes
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(100)
    bars.savefig(tmp_path / "c.png")
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("a.png", "b.png", "c.png"))
