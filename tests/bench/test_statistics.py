"""Speedups are arithmetic on paired records, intervals hold what they promise, and a metric is declared once."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.made_records import record
from hypothesis import given, strategies as st

from specexp.bench import metrics
from specexp.bench.equality import token_equality
from specexp.bench.metrics import (
    METRICS,
    Counted,
    Share,
    constraints,
    figures_of,
    figures_of_counts,
    loops,
    metric,
    metric_named,
    objectives,
    violation,
)
from specexp.bench.record import Difference, SequenceGroup
from specexp.bench.report import long_table, metric_table, results_table
from specexp.bench.statistics import bootstrap_interval, paired_speedup, summarise
from specexp.bench.table import Column
from specexp.commands.run_report import summary_of


def pair(prompt, plain, ours, **given):
    return [record("engine", prompt, plain), record("tree", prompt, ours, **given)]


def speedup_of(records, arm="tree", baseline="engine", **given):
    return paired_speedup(records, arm, baseline, **given)


def test_speedup_is_the_geometric_mean_of_the_prompts_own_ratios():
    speedup = speedup_of(pair(0, 1.0, 0.5) + pair(1, 9.0, 1.125))  # ratios 2 and 8
    assert speedup.mean_log_ratio == pytest.approx(math.log(4))
    assert (speedup.ratio, speedup.low, speedup.high) == pytest.approx((4, 2, 8))
    assert (speedup.n, speedup.refused, speedup.left_out) == (2, None, 0)
    assert str(speedup) == "4.00x [2.00, 8.00]"


def test_one_prompt_has_no_interval_and_proves_nothing():
    single = speedup_of(pair(0, 4.0, 1.0))
    assert str(single) == "4.00x (one prompt)"
    assert (single.is_faster, single.is_slower) == (False, False)
    assert Column("speedup", interval=True).csv_cells(single) == [pytest.approx(4.0), "", "", ""]


def test_seconds_are_per_decoded_token_by_default():
    first_pass_gave_two = record("tree", 0, 1.0, decode_tokens=2)
    assert speedup_of([record("engine", 0, 1.0), first_pass_gave_two]).ratio == 0.5
    # with a prefill of 2 s: 4 s against 3 s. A failed prompt has no seconds
    records = pair(0, 2.0, 1.0, prefill_seconds=2.0) + pair(1, 2.0, 1.0, error="no")
    records[0] = replace(records[0], prefill_seconds=2.0)
    whole = speedup_of(records, cost=lambda one: one.prefill_seconds + one.decode_seconds)
    assert (whole.ratio, whole.n, whole.left_out) == (pytest.approx(4 / 3), 1, 1)


def test_samples_of_a_prompt_count_once():
    records = pair(0, 1.0, 0.5) + pair(1, 1.0, 1.0, sample=0)
    records += [record("engine", 1, 1.0, sample=1), record("tree", 1, 0.25, sample=1)]
    speedup = speedup_of(records)  # log ratios: log 2; mean of 0 and log 4
    assert (speedup.ratio, speedup.n) == (pytest.approx(2), 2)


def test_prompts_without_a_time_in_both_are_left_out_and_counted():
    records = pair(0, 1.0, 0.5) + pair(1, 1.0, 0.5, decode_tokens=0)
    assert (speedup_of(records).n, speedup_of(records).left_out) == (1, 1)


def test_interval_contains_the_truth_about_as_often_as_it_promises():
    generator = np.random.default_rng(0)
    intervals = [bootstrap_interval(generator.normal(0.3, 0.1, 40), resamples=1000) for _ in range(200)]
    covered = sum(low <= 0.3 <= high for low, high in intervals)
    assert 178 <= covered <= 200  # 95 % less what percentile intervals of 40 values lose
    values = np.random.default_rng(1).normal(size=50)
    assert bootstrap_interval(values) == bootstrap_interval(values)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"dtype": "float32"}, "dtype differs (tree: float32, engine: bfloat16)"),
        ({"device": "cuda:0"}, "device differs (tree: cuda:0, engine: cpu)"),
        ({"verifier": "KeyedSampling(temperature=0.7)"}, "verifier differs"),
        ({"token_ids": (5, 6, 7)}, "1 of 2 outputs differ from engine's other than at a near tie"),
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
    records = [record("engine", 0), record("cold", 0, state="cold"), record("carry", 0, state="carry")]
    assert speedup_of(records, "carry").refused is None
    assert "state policy differs" in str(speedup_of(records, "carry", "cold"))


def test_sampled_outputs_that_are_not_keyed_are_not_compared():
    records = pair(0, 1.0, 0.5, token_ids=(1, 2), keyed=False)
    assert speedup_of(records).refused is None
    assert str(token_equality(records, "tree")) == "not compared"


def test_failed_prompts_are_counted_and_leave_the_rest_alone():
    records = [*pair(0, 1.0, 0.5), *pair(1, 1.0, 1.0, token_ids=(), error="ValueError: x")]
    assert speedup_of(records).ratio == pytest.approx(2)
    assert (summarise(records, "tree").prompts, summarise(records, "tree").failed) == (1, 1)


def test_micro_and_macro_means_and_shares():
    records = [
        record("tree", 0, 1.0, steps=1, accepted_drafts=3, drafted_nodes=6, finish_reasons=("eos",)),
        record("tree", 1, 3.0, token_ids=(5, 6) * 14, steps=28, drafted_nodes=24),
    ]
    summary = summarise(records, "tree")
    assert summary.tokens_per_step == pytest.approx(32 / 29)
    assert summary.tokens_per_step_macro == pytest.approx((4 + 1) / 2)
    assert summary.tokens_per_second == pytest.approx(32 / 4)
    assert summary.utilisation == pytest.approx(3 / 30)
    assert (summary.eos_share, summary.loop_share, summary.decode_seconds) == (0.5, 0.5, 4.0)
    assert metric_named("utilisation").over([record("engine", 0)]) is None


def test_a_new_metric_is_one_entry_and_is_shown_tracked_optimised_and_explained(monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", [*METRICS])

    @metric("share", better="lower", heading="bonus")
    def bonus_share(record):
        """Output that the target added itself."""
        return Share(record.bonus_tokens, record.new_tokens)

    records = [record("engine", 0), record("tree", 0, bonus_tokens=1)]
    assert summarise(records, "tree").bonus_share == 0.25
    assert [row["bonus"] for row in results_table(records).records()] == [1.0, 0.25]
    assert long_table(records).records()[1]["bonus_share"] == 0.25
    assert summary_of(records, "engine")["tree/bonus_share"] == 0.25
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
    with pytest.raises(ValueError, match="different clocks"):
        figures_of([*modelled, record("tree", 1)])


def test_counts_alone_give_the_figures_of_the_records_they_sum_up():
    two = [record("tree", 0, 1.0, steps=2, drafted_nodes=8), record("tree", 1, 3.0, steps=4, drafted_nodes=4)]
    total = Counted(6, 8, 0, 0, drafted_nodes=12, decode_seconds=4.0, decode_tokens=8)
    found = figures_of_counts(total, "measured")
    assert found == {name: figures_of(two)[name] for name in found}
    assert {"tokens_per_step", "nodes_per_step", "tokens_per_second", "draft_passes_per_step"} < found.keys()


def test_a_target_is_busy_only_where_several_sequences_are_decoded():
    group = SequenceGroup(sequences=2, wall_seconds=4.0, busy_seconds=3.0, overlap_seconds=0.0)
    assert figures_of([record("tree", 0, group=group)])["target_utilisation"] == 0.75
    assert "target_utilisation" not in figures_of([record("tree", 0)])


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([7] * 24, True),
        ([7] * 23, False),
        ([1, 2, 3] + [7] * 24, True),
        ([7] * 24 + [1], False),
        ([*range(32)] * 3, True),
        ([*range(33)] * 4, False),
        ([*range(10)] * 2 + [*range(9)], False),
        ([], False),
    ],
)
def test_a_long_repeated_end_is_a_loop(token_ids, expected):
    assert loops(token_ids) is expected


@given(
    head=st.lists(st.integers(0, 5), max_size=20),
    piece=st.lists(st.integers(0, 5), min_size=1, max_size=32),
    more=st.integers(0, 40),
)
def test_a_long_repetition_loops_wherever_it_is_cut(head, piece, more):
    assert loops(head + (piece * 60)[: max(24, 3 * len(piece)) + more])
