"""Statistics of paired records, metrics declared once, and the tables and pictures made of them."""

import csv
import dataclasses
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import yaml
from helpers.made_records import PHASES, record
from rich.console import Console

from experiments.by_task import FastestByTask
from specexp.bench import metrics
from specexp.bench.equality import token_equality
from specexp.bench.metrics import (
    METRICS,
    Counted,
    Share,
    constraints,
    figures_of,
    figures_of_counts,
    metric,
    metric_named,
    objectives,
    violation,
)
from specexp.bench.record import FEWEST_TOKENS, Difference, PromptRecord, SequenceGroup
from specexp.bench.statistics import Speedup, breakdown, mean_interval, paired_speedup, student, summarize
from specexp.bench.verdict import LEAST_GAIN
from specexp.builders import Chain
from specexp.commands.run_report import curves_of, summary_of
from specexp.config import load_config
from specexp.core.parts import Parts
from specexp.drafters import PromptLookup
from specexp.report.comparison import (
    acceptance_table,
    category_table,
    context_table,
    first_token_sentence,
    kinds_sentence,
    long_table,
    metric_table,
    phase_table,
    results_table,
    short_answers,
    source_table,
)
from specexp.report.pictures import speedup_bars
from specexp.report.table import Column, Table, columns
from specexp.verifiers import Greedy

pytestmark = pytest.mark.unit


def pair(prompt, plain, ours, **given):
    return [record("plain", prompt, plain), record("tree", prompt, ours, **given)]


def speedup_of(records, arm="tree", baseline="plain", **given):
    return paired_speedup(records, arm, baseline, **given)


def test_speedup_is_the_geometric_mean_of_the_prompts_own_ratios():
    speedup = speedup_of(pair(0, 1.0, 0.5) + pair(1, 9.0, 1.125))  # ratios 2 and 8
    assert speedup.mean_log_ratio == pytest.approx(math.log(4))
    half = 12.7062 * math.log(2)  # Student's t with one degree of freedom; the deviation is sqrt(2) log 2
    assert (speedup.ratio, speedup.low) == pytest.approx((4, 4 * math.exp(-half)), rel=1e-4)
    assert (speedup.n, speedup.refused, speedup.left_out) == (2, None, 0)
    assert str(speedup_of(pair(0, 1.0, 0.25) + pair(1, 2.0, 0.5))) == "4.00x [4.00, 4.00]"


def test_one_prompt_has_no_interval_and_proves_nothing():
    single = speedup_of(pair(0, 4.0, 1.0))
    assert str(single) == "4.00x (one prompt)"
    assert (single.is_faster, single.is_slower) == (False, False)
    assert Column("speedup", interval=True).csv_cells(single) == [pytest.approx(4.0), "", "", ""]


def test_seconds_are_per_decoded_token_by_default():
    first_pass_gave_two = record("tree", 0, 1.0, decode_tokens=2)
    assert speedup_of([record("plain", 0, 1.0), first_pass_gave_two]).ratio == 0.5
    # with a prefill of 2 s: 4 s against 3 s. A failed prompt has no seconds
    records = pair(0, 2.0, 1.0, prefill_seconds=2.0) + pair(1, 2.0, 1.0, error="no")
    records[0] = replace(records[0], prefill_seconds=2.0)
    whole = speedup_of(records, cost=lambda one: one.prefill_seconds + one.decode_seconds)
    assert (whole.ratio, whole.n, whole.left_out) == (pytest.approx(4 / 3), 1, 1)
    without = speedup_of(pair(0, 1.0, 0.5) + pair(1, 1.0, 0.5, decode_tokens=0))
    assert (without.n, without.left_out) == (1, 1)


def test_samples_of_a_prompt_count_once():
    records = pair(0, 1.0, 0.5) + pair(1, 1.0, 1.0, sample=0)
    records += [record("plain", 1, 1.0, sample=1), record("tree", 1, 0.25, sample=1)]
    speedup = speedup_of(records)  # log ratios: log 2; mean of 0 and log 4
    assert (speedup.ratio, speedup.n) == (pytest.approx(2), 2)


def test_a_bound_above_a_hundred_is_cut():
    two = Speedup.of("a", "b", np.log([0.02, 50.0]), "measured")
    assert str(two) == "1.00x [0.00, >100]"


def test_interval_contains_the_truth_about_as_often_as_it_promises():
    generator = np.random.default_rng(0)
    for prompts in (6, 8, 40):
        intervals = [mean_interval(generator.normal(0.3, 0.1, prompts)) for _ in range(1000)]
        covered = sum(low <= 0.3 <= high for low, high in intervals)
        assert 929 <= covered <= 971, prompts  # 95 % within three standard errors


@pytest.mark.parametrize("of_each", [3, 5])
def test_an_interval_within_kinds_contains_the_truth_as_often_and_is_narrower(of_each):
    generator = np.random.default_rng(0)
    means, deviations = np.array([[1.0, 0.5, 0.2], [0.3, 0.2, 0.1]])
    kinds = ["edit", "summarise", "chat"] * of_each
    drawn = generator.normal(means, deviations, (1000, of_each, 3)).reshape(1000, -1)
    within = [Speedup.of("a", "b", logs, "measured", kinds=kinds) for logs in drawn]
    covered = sum(one.low <= np.exp(means.mean()) <= one.high for one in within)
    assert 929 <= covered <= 980
    overall = [Speedup.of("a", "b", logs, "measured") for logs in drawn]
    assert np.median([one.high / one.low for one in within]) < np.median([one.high / one.low for one in overall]) / 1.2


def test_fewer_than_three_prompts_of_a_kind_make_no_interval_narrower():
    logs = np.log([1.0, 1.1, 3.0, 3.1, 3.2])
    plain = Speedup.of("a", "b", logs, "measured")
    assert Speedup.of("a", "b", logs, "measured", kinds=["x", "x", "y", "y", "y"]) == plain
    assert Speedup.of("a", "b", logs, "measured", kinds=["x"] * 5) == plain


def test_kinds_of_equal_spread_lose_a_degree_of_freedom_each():
    logs = np.log([1.0, 2.0, 3.0, 2.0, 4.0, 6.0])  # the second kind is twice the first
    found = Speedup.of("a", "b", logs, "measured", kinds=["x"] * 3 + ["y"] * 3)
    assert found.degrees_lost == pytest.approx(2)
    one = np.log([1.0, 2.0, 3.0]).std(ddof=1)
    assert np.log(found.high) - found.mean_log_ratio == pytest.approx(student(5) * one / 6**0.5)


def test_a_speedup_has_the_categories_of_its_records_as_kinds():
    records = [one for at in range(6) for one in pair(at, 1.0, 1 / (1 + at // 3 + at % 3 / 10))]
    mixed = [dataclasses.replace(one, category="x" if one.prompt_id < "p3" else "y") for one in records]
    assert speedup_of(mixed).high < speedup_of(records).high


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"dtype": "float32"}, "dtype differs (tree: float32, plain: bfloat16)"),
        ({"device": "cuda:0"}, "device differs (tree: cuda:0, plain: cpu)"),
        ({"verifier": "KeyedSampling(temperature=0.7)"}, "verifier differs"),
        ({"decisions": (50, 6)}, "12% of the decisions of tree were random; let it learn before the run (preload)"),
        ({"token_ids": (5, 6, 7)}, "1 of 2 outputs differ from plain's, and not at a near tie"),
        ({"token_ids": (5, 6, 9, 9), "difference": Difference(2, 0.3, False)}, "1 of 2 outputs differ"),
    ],
)
def test_a_speedup_is_refused_with_its_reason(given, reason):
    speedup = speedup_of(pair(0, 1.0, 0.5) + pair(1, 1.0, 0.5, **given))
    assert reason in str(speedup.refused)
    assert str(speedup).startswith("refused: ")
    assert math.isnan(speedup.ratio)


def test_a_counted_near_tie_excuses_other_tokens_and_counts():
    near = Difference(2, 0.0625, True)
    records = pair(0, 1.0, 0.5) + pair(1, 1.0, 0.5, token_ids=(5, 6, 9), difference=near)
    assert speedup_of(records).refused is None
    equality = token_equality(records, "tree")
    assert (equality.equal, equality.near_ties, equality.wrong) == (1, 1, 0)
    assert str(equality) == "2/2 (1 equal, 1 near tie)"


def test_state_policies_must_agree_unless_one_arm_has_none():
    records = [record("plain", 0), record("cold", 0, state="cold"), record("carry", 0, state="carry")]
    assert speedup_of(records, "carry").refused is None
    assert "state policy differs" in str(speedup_of(records, "carry", "cold"))


def test_sampled_outputs_that_are_not_keyed_are_not_compared():
    records = pair(0, 1.0, 0.5, token_ids=(1, 2), keyed=False)
    assert speedup_of(records).refused is None
    assert str(token_equality(records, "tree")) == "not compared"


def test_failed_prompts_are_counted_and_leave_the_rest_alone():
    records = [*pair(0, 1.0, 0.5), *pair(1, 1.0, 1.0, token_ids=(), error="ValueError: x")]
    assert speedup_of(records).ratio == pytest.approx(2)
    assert (summarize(records, "tree").prompts, summarize(records, "tree").failed) == (1, 1)


def test_micro_and_macro_means_and_shares():
    records = [
        record("tree", 0, 1.0, steps=1, accepted_drafts=3, drafted_nodes=6, finish_reasons=("eos",)),
        record("tree", 1, 3.0, token_ids=(5, 6) * 14, steps=28, drafted_nodes=24),
    ]
    summary = summarize(records, "tree")
    assert summary.tokens_per_step == pytest.approx(32 / 29)
    assert summary.tokens_per_step_macro == pytest.approx((4 + 1) / 2)
    assert summary.tokens_per_second == pytest.approx(32 / 4)
    assert summary.utilisation == pytest.approx(3 / 30)
    assert (summary.eos_share, summary.loop_share, summary.decode_seconds) == (0.5, 0.5, 4.0)
    assert metric_named("utilisation").over([record("plain", 0)]) is None
    group = SequenceGroup(sequences=2, wall_seconds=4.0, busy_seconds=3.0)
    assert figures_of([record("tree", 0, group=group)])["target_utilisation"] == 0.75
    assert "target_utilisation" not in figures_of([record("tree", 0)])


def test_a_new_metric_is_one_entry_and_is_shown_tracked_optimised_and_explained(monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", [*METRICS])

    @metric("share", better="lower", heading="bonus")
    def bonus_share(record):
        """Output that the target added itself."""
        return Share(record.bonus_tokens, record.new_tokens)

    records = [record("plain", 0), record("tree", 0, bonus_tokens=1)]
    assert summarize(records, "tree").bonus_share == 0.25
    assert [row["bonus"] for row in results_table(records).records()] == [1.0, 0.25]
    assert long_table(records).records()[1]["bonus_share"] == 0.25
    assert summary_of(records, "plain")["tree/bonus_share"] == 0.25
    assert objectives()["bonus_share"] == "minimize"
    assert {"max_bonus_share", "min_bonus_share"} < set(constraints())
    assert violation("max_bonus_share", 0.2, figures_of(records[1:])) == pytest.approx(0.05)
    assert metric_table().rows[-1][:2] == ["bonus_share", "share"]


def test_every_metric_is_explained_in_a_sentence():
    assert len({one.name for one in METRICS}) == len(METRICS)
    for one in METRICS:
        assert one.description.endswith("."), one.name
        assert one.description[0].isupper(), one.name
        assert one.unit, one.name


def test_figures_of_a_profiles_seconds_are_called_modelled():
    modelled = [record("tree", 0, clock="modelled by A100")]
    assert "modelled_tokens_per_second" in figures_of(modelled)
    assert not {"tokens_per_second", "prefill_seconds"} & figures_of(modelled).keys()
    assert violation("min_tokens_per_second", 5.0, figures_of(modelled)) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="records must have the same clock"):
        figures_of([*modelled, record("tree", 1)])


def test_counts_alone_give_the_figures_of_the_records_they_sum_up():
    two = [record("tree", 0, 1.0, steps=2, drafted_nodes=8), record("tree", 1, 3.0, steps=4, drafted_nodes=4)]
    total = Counted(6, 8, 0, 0, drafted_nodes=12, decode_seconds=4.0, decode_tokens=8)
    found = figures_of_counts(total, "measured")
    assert found == {name: figures_of(two)[name] for name in found}
    assert {"tokens_per_step", "nodes_per_step", "tokens_per_second", "draft_passes_per_step"} < found.keys()


@pytest.fixture
def records():
    shares = dict(zip(PHASES, (0.1, 0.05, 0.7, 0.05, 0.05, 0.05), strict=True))
    made = []
    for prompt in range(8):
        made += [
            record("plain", prompt, 1.0),
            record("hf-eager", prompt, 2.0, decode_tokens=3),
            record("tree", prompt, 0.5, steps=2, drafted_nodes=20, state="cold", seconds=shares),
            record("wrong", prompt, 0.5, token_ids=(1, 2, 3, 4)),
            record("loose", prompt, 0.5, token_ids=(1,), lossless=False, keyed=False, verifier="Typical"),
        ]
    return made


def cell(table, arm, title):
    return next(row for row in table.shown() if row[0] == arm)[table.titles.index(title)]


def test_a_refusal_that_rows_share_is_written_once_below_the_table():
    refuse = Speedup.refuse
    whys = [refuse("a", "plain", "long reason"), refuse("b", "plain", "long reason"), refuse("c", "plain", "another")]
    table = Table("Arms", columns("arm | gain:interval"), [[why.arm, why] for why in whys], ["a note"])
    assert table.shown() == [["a", "refused"], ["b", "refused"], ["c", "refused: another"]]
    assert table.to_markdown().endswith("| c | refused: another |\n\n- a note\n- refused: long reason\n")
    table.rows.append(["d", whys[2]])
    assert table.shown()[2:] == [["c", "refused [2]"], ["d", "refused [2]"]]
    assert table.all_notes() == ["a note", "refused [1]: long reason", "refused [2]: another"]
    assert "refused: long reason" not in Table("Arms", columns("arm | gain:interval"), table.rows[:1]).all_notes()


def test_columns_are_one_line_and_a_row_by_headings_leaves_the_others_empty():
    heads = columns("arm | busy:.1% | a:b step:.3 ms | at 4:.2x | of phrases':.0 | gain:interval")
    assert heads[:3] == [Column("arm"), Column("busy", 1, "%"), Column("a:b step", 3, " ms")]
    assert heads[3:] == [Column("at 4", 2, "x"), Column("of phrases'", 0), Column("gain", interval=True)]
    table = Table("Arms", columns("arm | steps | busy:.1%"))
    table.add({"busy": 0.25, "arm": "plain"})
    assert table.shown() == [["plain", "-", "25.0 %"]]
    with pytest.raises(ValueError, match="Arms: there is no column 'step'"):
        table.add({"step": 3})


def test_the_table_of_results_has_a_row_for_each_arm(records):
    published = [{"method": "Lookahead", "tokens_per_step": 1.64, "speedup": 1.27, "source": "Table 1"}]
    table = results_table(records, "Which?", published=published)
    for arm, title, shown in (
        ("tree", "vs plain", "2.00x [2.00, 2.00]"),
        ("tree", "vs hf-eager", "5.33x [5.33, 5.33]"),
        ("tree", "tokens/step", "2.00"),
        ("tree", "state", "cold"),
        ("tree", "equal outputs", "8/8"),
        ("plain", "vs plain", "-"),
        ("plain", "equal outputs", "reference"),
        ("wrong", "vs plain", "refused: 8 of 8 outputs differ from plain's, and not at a near tie"),
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
    assert float(rows[2]["vs plain"]) == pytest.approx(2)
    assert rows[3]["vs plain refused"].startswith("8 of 8 outputs differ")
    assert rows[3]["vs plain low"] == ""


@pytest.mark.parametrize(
    ("seconds_of_b", "sentence"),
    [
        ((0.9, 0.9), ""),
        ((1.1, 1.2), "By kind of prompt, the tree does not pay for b (0.87x [0.83, 0.91])."),
        ((0.7, 1.4), "By kind of prompt, the tree is not yet shown to pay for b."),
    ],
)
def test_a_mixed_gain_names_the_kinds_for_which_it_does_not_pay(seconds_of_b, sentence):
    records = []
    for prompt in range(16):
        seconds = 0.5 if prompt % 2 == 0 else seconds_of_b[prompt // 2 % 2]
        records += pair(prompt, 1.0, seconds, steps=2)
    assert kinds_sentence(records, "tree", "the tree", "plain", LEAST_GAIN, 1) == sentence
    assert kinds_sentence(records[2:4], "tree", "the tree", "plain", LEAST_GAIN, 1) == ""


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        ((1.8, 1.8, 1.8, 1.8), "the tree takes 1.80x [1.80, 1.80] as long as plain decoding to its first token"),
        ((1.2, 1.2, 1.2, 1.2), ""),  # too little to matter
        ((0.5, 3.0, 1.0, 4.0), ""),  # within noise
    ],
)
def test_a_late_first_token_has_a_sentence(seconds, sentence):
    records = []
    for prompt, late in enumerate(seconds):
        plain, tree = pair(prompt, 1.0, 0.5, steps=2)
        records += [replace(plain, prefill_seconds=1.0), replace(tree, prefill_seconds=late)]
    found = first_token_sentence(records, "tree", "the tree")
    assert found == (f"{sentence}, which the speedups leave out." if sentence else "")


def test_the_table_by_category_has_a_row_for_each_category(records):
    table = category_table(records)
    assert table.titles == ["arm", "a", "b", "all"]
    assert cell(table, "tree", "a") == "2.00x [2.00, 2.00] (2.00)"
    assert cell(table, "wrong", "all") == "refused (1.00)"
    assert category_table([r for r in records if r.category == "a"]) is None
    assert category_table([dataclasses.replace(r, category=r.prompt_id) for r in records]) is None
    theirs = [{"method": "theirs", "category": name, "speedup": 2.0 + n} for n, name in enumerate(("qa", "rag"))]
    table = category_table(records, published=theirs)
    assert len(table.rows) == 5
    assert "theirs (not run here): qa 2.00x, rag 3.00x." in table.notes
    rare = {"p0": "few 0", "p1": "few 1"}
    table = category_table([dataclasses.replace(r, category=rare.get(r.prompt_id, r.category)) for r in records])
    assert table.titles == ["arm", "a", "b", "others", "all"]
    assert table.notes[1] == "Others, of fewer than 3 prompts each: few 0, few 1."


def test_csv_has_every_arm_in_every_category(records):
    rows = list(csv.DictReader(io.StringIO(long_table(records).to_csv())))
    arms = ("plain", "hf-eager", "tree", "wrong", "loose")
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
    failed = [record(arm, 0, token_ids=(), error="ValueError: no") for arm in ("plain", "tree")]
    table = results_table(failed)
    assert cell(table, "tree", "vs plain") == "refused: no prompt was answered by both tree and plain"
    assert table.notes == ["Every prompt failed, the first with: ValueError: no."]
    speedup_bars(failed, baseline="plain", title="", published={})


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


def test_acceptance_by_position():
    chain, tree = acceptance_table(DRAFTED).records()  # a position counts in the steps that drafted it
    assert (chain["arm"], chain["1"], chain["2"], chain["3"]) == ("chain", 4 / 8, 1 / 2, None)
    assert (chain["alpha"], tree["alpha"]) == pytest.approx((5 / 10, 1 / 6))
    assert (tree["1"], tree["2"], tree["3"]) == (0.5, 0.0, 0.0)
    assert acceptance_table(DRAFTED[:1]) is None


def test_acceptance_by_source_is_shown_for_arms_with_several_sources():
    found = [
        dataclasses.replace(record(arm, prompt), steps=4, nodes_by_source=nodes)
        for arm, prompt, nodes in (
            ("both", 0, {"PromptLookup": (6, 3), "TokenRecycling": (8, 1)}),
            ("both", 1, {"TokenRecycling": (2, 0)}),
            ("one", 0, {"TokenRecycling": (8, 4)}),
        )
    ]
    assert [row[:3] for row in source_table(found).rows] == [
        ["both", "PromptLookup", 6 / 8],
        ["both", "TokenRecycling", 10 / 8],
    ]
    assert [row[3:] for row in source_table(found).rows] == [[3 / 6, 3 / 8], [1 / 10, 1 / 8]]
    assert source_table(found[2:]) is None


@pytest.mark.parametrize(
    ("answers", "start"),
    [
        ([(1, "eos"), (1, "eos"), (40, "length")], "Warning: the median answer of plain has 1 token, too "),
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


def test_a_task_shows_the_setup_chosen_on_other_prompts_and_keeps_losing_rows():
    def answers(task, prompt, seconds):
        return [
            replace(
                record(arm, prompt, took, accepted_drafts=accepted),
                drafted_at=(4, 4, 2),
                accepted_at=(4, 2),
                prompt_id=f"{task}{prompt}",
                category=task,
            )
            for arm, took, accepted in zip(("plain", "chain", "tree"), seconds, (0, 2, 3), strict=True)
        ]

    edits = [answers("edit", prompt, (2.0, 1.0, 4.0)) for prompt in (0, 2, 4, 6)]  # the chain is chosen on these,
    edits += [answers("edit", prompt, (2.0, 0.5, 0.1)) for prompt in (1, 3, 5, 7)]  # and measured on these
    chats = [answers("chat", prompt, (1.0, 2.0, 4.0)) for prompt in range(4)]
    ordered = [
        *(one for number in (0, 4, 1, 5, 2, 6, 3, 7) for one in edits[number]),
        *(one for chat in chats for one in chat),
    ]
    analysis = FastestByTask()
    plain = Parts(verifier=Greedy())
    analysis.begin({"plain": plain, "chain": drafts(), "tree": drafts()})
    report = analysis.report(ordered)
    edit, chat = report.tables["tasks"].shown()
    assert edit == ["edit", "2", "chain", "4.00x [4.00, 4.00]", "0.50", "█▅▁", "4/4"]
    assert chat == ["chat", "4", "plain; next chain", "0.50x [0.50, 0.50]", "0.50", "█▅▁", "2/2"]
    assert report.answer == "Drafting pays for 1 of 2 tasks: edit 4.00x [4.00, 4.00] (chain)."
    assert json.loads(report.files["tasks_rule.json"]) == {
        "edit": {"setup": "chain", "request": {"speculative": True}},
        "chat": {"setup": "plain", "request": {"speculative": False}},
    }


def test_tokens_per_step_by_context_length_come_from_the_sources_of_tokens():
    def answer(prompt, length, sources):
        tokens = (5,) * len(sources)
        return record("chain", prompt, token_ids=tokens, prompt_tokens=length, drafted_at=(1,), sources=sources)

    short = answer(0, 10, (0, -1) * 40)  # 28 steps begin with at most 64 tokens, too few to show, and 12 with more
    more, long = answer(1, 70, (-1,) * 20), answer(2, 300, (-1,) * 40)
    table = context_table([short, more, long, record("plain", 0)])
    assert table.titles == ["arm", "up to 256", "up to 1,024"]
    assert table.rows == [["chain", pytest.approx((12 * 2 + 20) / 32), 1.0]]
    assert context_table([long]) is None
    above = context_table([long, answer(3, 5000, (0, 0, -1) * 30)])
    assert (above.titles, above.rows) == (["arm", "up to 1,024", "above 4,096"], [["chain", 1.0, 3.0]])


def drafts() -> Parts:
    return Parts(drafter=PromptLookup(), verifier=Greedy(), builder=Chain())
