"""Tables hold in three forms what the records hold, and mark what must be marked; notes warn of bad runs."""

import csv
import dataclasses
import io

import pytest
import yaml
from helpers.made_records import PHASES, record
from rich.console import Console

from specexp.bench.experiment import curves_of
from specexp.bench.pictures import Curve, parameter_curves, phase_bars, speedup_bars
from specexp.bench.record import PromptRecord
from specexp.bench.report import (
    FEWEST_TOKENS,
    acceptance_tables,
    category_table,
    long_table,
    phase_table,
    results_table,
    short_answers,
)
from specexp.bench.statistics import breakdown
from specexp.bench.table import Column, Table, columns
from specexp.config import load_config


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
    return next(row for row in table.shown() if row[0] == arm)[table.titles.index(title)]


def test_columns_are_one_line_and_a_row_by_headings_leaves_the_others_empty():
    heads = columns("arm | busy:.1% | a:b step:.3 ms | at 4:.2x | of phrases':.0 | gain:interval")
    assert heads[:3] == [Column("arm"), Column("busy", 1, "%"), Column("a:b step", 3, " ms")]
    assert heads[3:] == [Column("at 4", 2, "x"), Column("of phrases'", 0), Column("gain", interval=True)]
    table = Table("Arms", columns("arm | steps | busy:.1%"))
    table.add({"busy": 0.25, "arm": "engine"})
    assert table.shown() == [["engine", "-", "25.0 %"]]
    with pytest.raises(ValueError, match="Arms: no column is headed 'step'"):
        table.add({"step": 3})


def test_results(records):
    published = [{"method": "Lookahead", "tokens_per_step": 1.64, "speedup": 1.27, "source": "Table 1"}]
    table = results_table(records, "Which?", published=published)
    for arm, title, shown in (
        ("tree", "vs engine", "2.00x [2.00, 2.00]"),
        ("tree", "vs hf-eager", "5.33x [5.33, 5.33]"),
        ("tree", "tokens/step", "2.00"),
        ("tree", "state", "cold"),
        ("tree", "equal outputs", "8/8"),
        ("engine", "vs engine", "-"),
        ("engine", "equal outputs", "reference"),
        ("wrong", "vs engine", "refused: 8 of 8 outputs differ from engine's other than at a near tie"),
        ("wrong", "equal outputs", "0/8, 8 DIFFER"),
        ("loose (LOSSY)", "equal outputs", "not compared"),
        ("Lookahead (not run here)", "vs hf-eager", "1.27x published"),
    ):
        assert cell(table, arm, title) == shown
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
    assert table.titles == ["arm", "a", "b", "all"]
    assert cell(table, "tree", "a") == "2.00x (2.00)"
    assert cell(table, "wrong", "all") == "refused (1.00)"
    assert category_table([r for r in records if r.category == "a"]) is None
    assert category_table([dataclasses.replace(r, category=r.prompt_id) for r in records]) is None
    theirs = [
        {"method": "theirs", "category": name, "speedup": 2.0 + n} for n, name in enumerate(("qa", "rag"))
    ]
    table = category_table(records, published=theirs)
    assert len(table.rows) == 5
    assert "theirs (not run here): qa 2.00x, rag 3.00x." in table.notes
    rare = {"p0": "few 0", "p1": "few 1"}
    table = category_table(
        [dataclasses.replace(r, category=rare.get(r.prompt_id, r.category)) for r in records]
    )
    assert table.titles == ["arm", "a", "b", "others", "all"]
    assert table.notes[1] == "Others, of fewer than 3 prompts each: few 0, few 1."


def test_csv_has_every_arm_in_every_category(records):
    rows = list(csv.DictReader(io.StringIO(long_table(records).to_csv())))
    arms = ("engine", "hf-eager", "tree", "wrong", "loose")
    expected = {(arm, category) for arm in arms for category in ("all", "a", "b")}
    assert {(row["arm"], row["category"]) for row in rows} == expected
    tree = next(row for row in rows if (row["arm"], row["category"]) == ("tree", "b"))
    assert (tree["prompts"], tree["equal"], tree["wrong"]) == ("4", "4", "0")


def test_the_phases_add_up(records):
    part = breakdown(records, "tree")
    assert sum(part.shares.values()) == pytest.approx(1)
    assert (part.step_seconds, part.outside_forward) == pytest.approx((0.5, 0.3))
    assert breakdown(records, "hf-eager") is None
    table = phase_table(records)
    assert cell(table, "tree", "target") == "70.0 %"
    assert cell(table, "tree", "outside forward passes") == "30.0 %"
    shares = dict(zip(PHASES, (0.2, 0.0, 0.7, 0.1, 0.0, 0.0), strict=True))
    part = breakdown([record("draft", 0, 1.0, seconds=shares, draft_passes=4)], "draft")
    assert part.outside_forward == pytest.approx(0.1), "a draft model's answers are forward passes"


def test_a_run_in_which_everything_failed_has_a_table():
    failed = [record(arm, 0, token_ids=(), error="ValueError: no") for arm in ("engine", "tree")]
    table = results_table(failed)
    assert cell(table, "tree", "vs engine") == "refused: no prompt was answered by both tree and engine"
    assert table.notes == ["Every prompt failed, the first with: ValueError: no."]
    speedup_bars(failed)


def test_figures_are_drawn(records, tmp_path):
    curve = Curve("nodes", "nodes", [(8, "tree"), (16, "wrong"), (32, "tree")])
    curves = parameter_curves(records, [curve], title="How many?")
    assert [axes.get_xlabel() for axes in curves.axes] == ["", "nodes"]
    other = Curve("others", "nodes", [(8, "wrong"), (512, "tree")])
    top, bottom = parameter_curves(records, [curve, other]).axes
    assert [text.get_text() for text in bottom.get_legend().get_texts()] == ["nodes", "others"]
    assert [text.get_text() for text in top.get_xticklabels()] == ["8", "16", "32", "512"]
    phases = phase_bars(records, title="Where?")
    (axes,) = phases.axes
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(100)
    for figure in (speedup_bars(records, title="Which?", published={"Lookahead": 1.27}), curves, phases):
        figure.savefig(tmp_path / "figure.png")
        assert (tmp_path / "figure.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("grid", "axis", "places", "titles"),
    [
        ({"drafter.init_args.temperature": [0.2, 1, 1.4]}, "temperature", [0.2, 1, 1.4], None),
        (
            {"builder.init_args.widths": [[2, 2], [4, *[1] * 7], [3, 2, 2, 1]]},
            "nodes",
            [6, 32, 33],
            ["mine, widths=[2, 2]", "mine, widths=[4, 1 x 7]", "mine, widths=[3, 2, 2, 1]"],
        ),
        ({"drafter.init_args.coupled": [False, True]}, None, None, None),  # a switch
        ({"builder.init_args.widths": [[2, 2]]}, None, None, None),  # a single point
        ({"builder.init_args.widths": [[2], [1]], "drafter.init_args.top_k": [5]}, None, None, None),
    ],
)
def test_arms_that_sweep_one_number_are_points_of_a_curve(tmp_path, grid, axis, places, titles):
    content = {
        "drafter": {"class_path": "DraftModel"},
        "builder": {"class_path": "KConfig", "init_args": {"widths": [1]}},
        "verifier": {"class_path": "KeyedSampling"},
        "arms": {"one": {"title": "mine", "grid": grid}},
    }
    (tmp_path / "curves.yaml").write_text(yaml.safe_dump(content))
    found = curves_of(load_config(tmp_path / "curves.yaml"))
    assert [(curve.title, curve.axis) for curve in found] == ([("mine", axis)] if axis else [])
    for curve in found:
        assert [place for place, _ in curve.points] == places
        assert titles is None or [name for _, name in curve.points] == titles


DRAFTED = [
    dataclasses.replace(record(arm, prompt), category="code", drafted_at=at, accepted_at=accepted)
    for arm, prompt, at, accepted in (
        ("plain", 0, (), ()),
        ("chain", 0, (4, 2), (3, 1)),
        ("chain", 1, (4,), (1,)),
        ("tree", 0, (2, 2, 2), (1,)),
    )
]


def test_acceptance_by_position_and_category():
    (table,) = acceptance_tables(DRAFTED).values()
    chain, tree = table.records()  # a position counts in the steps that drafted it
    assert (chain["arm"], chain["1"], chain["2"], chain["3"]) == ("chain", 4 / 8, 1 / 2, None)
    assert (chain["alpha"], tree["alpha"]) == pytest.approx((5 / 10, 1 / 6))
    assert (tree["1"], tree["2"], tree["3"]) == (0.5, 0.0, 0.0)
    assert acceptance_tables(DRAFTED[:1]) == {}
    many = [
        dataclasses.replace(record("chain", n), category=category, drafted_at=(of,), accepted_at=(1,))
        for n, (category, of) in enumerate([("code", 2)] * 5 + [("chat", 4)] * 5)
    ]
    (row,) = acceptance_tables(many)["acceptance"].records()
    assert (row["code"], row["chat"], row["all"]) == (0.5, 0.25, 10 / 30)


@pytest.mark.parametrize(
    ("answers", "start"),
    [
        ([(1, "eos"), (1, "eos"), (40, "length")], "Warning: the median answer of plain has 1 token, "),
        ([(FEWEST_TOKENS, "eos"), (FEWEST_TOKENS, "eos")], None),
        ([(4, "length"), (4, "length"), (2, "eos")], None),  # no more were requested
        ([], None),
    ],
)
def test_a_short_median_answer_warns(answers, start):
    records = [
        PromptRecord("plain", str(n), "c", turn_tokens=(tokens,), finish_reasons=(reason,))
        for n, (tokens, reason) in enumerate(answers)
    ]
    found = short_answers(records, "plain")
    assert found is None if start is None else found.startswith(start)
    assert short_answers(records, "other") is None
