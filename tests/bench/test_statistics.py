"""Speedups are arithmetic on paired records, intervals hold what they promise, and refusals say why."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.made_records import record

from specexp.bench.equality import token_equality
from specexp.bench.record import Difference
from specexp.bench.statistics import bootstrap_interval, paired_speedup, summarise
from specexp.bench.table import Column


def pair(prompt, plain, ours, **given):
    return [record("engine", prompt, plain), record("tree", prompt, ours, **given)]


def test_speedup_is_the_geometric_mean_of_the_prompts_own_ratios():
    records = pair(0, 1.0, 0.5) + pair(1, 9.0, 1.125)  # ratios 2 and 8
    speedup = paired_speedup(records, "tree", "engine")
    assert speedup.mean_log_ratio == pytest.approx(math.log(4))
    assert speedup.ratio == pytest.approx(4)
    assert (speedup.low, speedup.high) == pytest.approx((2, 8))
    assert (speedup.n, speedup.refused, speedup.left_out) == (2, None, 0)
    assert str(speedup) == "4.00x [2.00, 8.00]"


def test_one_prompt_has_no_interval_and_proves_nothing():
    alone = paired_speedup(pair(0, 4.0, 1.0), "tree", "engine")
    assert str(alone) == "4.00x (one prompt)"
    assert not alone.is_faster
    assert not alone.is_slower
    cells = Column("speedup", interval=True).csv_cells(alone)
    assert cells == [pytest.approx(4.0), "", "", ""]


def test_seconds_are_per_decoded_token():
    first_pass_gave_two = record("hf", 0, 1.0, decode_tokens=2)
    assert paired_speedup([record("engine", 0, 1.0), first_pass_gave_two], "hf", "engine").ratio == 0.5


def test_other_seconds_of_a_record_can_be_compared():
    """With a prefill of 2 s: 4 s against 3 s; a failed prompt has none, whatever is asked of it."""
    records = pair(0, 2.0, 1.0, prefill_seconds=2.0) + pair(1, 2.0, 1.0, error="no")
    records[0] = replace(records[0], prefill_seconds=2.0)
    whole = paired_speedup(
        records, "tree", "engine", cost=lambda one: one.prefill_seconds + one.decode_seconds
    )
    assert whole.ratio == pytest.approx(4 / 3)
    assert (whole.n, whole.left_out) == (1, 1)


def test_samples_of_a_prompt_count_once():
    records = pair(0, 1.0, 0.5)
    records += [
        record("engine", 1, 1.0, sample=0),
        record("tree", 1, 1.0, sample=0),
        record("engine", 1, 1.0, sample=1),
        record("tree", 1, 0.25, sample=1),
    ]
    speedup = paired_speedup(records, "tree", "engine")  # log ratios: log 2; mean of 0 and log 4
    assert (speedup.ratio, speedup.n) == (pytest.approx(2), 2)


def test_prompts_without_a_time_in_both_are_left_out_and_counted():
    records = pair(0, 1.0, 0.5) + pair(1, 1.0, 0.5, decode_tokens=0)
    speedup = paired_speedup(records, "tree", "engine")
    assert (speedup.n, speedup.left_out) == (1, 1)


def test_interval_contains_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(0)
    intervals = [bootstrap_interval(generator.normal(0.3, 0.1, 40), resamples=1000) for _ in range(200)]
    covered = sum(low <= 0.3 <= high for low, high in intervals)
    assert 178 <= covered <= 200  # 95 % less what percentile intervals of 40 values lose


def test_nobody_draws_again_for_a_better_interval():
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
    speedup = paired_speedup(pair(0, 1.0, 0.5) + pair(1, 1.0, 0.5, **given), "tree", "engine")
    assert speedup.refused is not None
    assert reason in speedup.refused
    assert str(speedup).startswith("refused: ")
    assert math.isnan(speedup.ratio)


def test_a_counted_near_tie_excuses_other_tokens_and_counts():
    near = Difference(2, 0.0625, True)
    records = pair(0, 1.0, 0.5) + pair(1, 1.0, 0.5, token_ids=(5, 6, 9), difference=near)
    assert paired_speedup(records, "tree", "engine").refused is None
    equality = token_equality(records, "tree")
    assert (equality.equal, equality.near_ties, equality.wrong) == (1, 1, 0)
    assert str(equality) == "2/2 (1 equal, 1 near tie)"


def test_state_policies_must_agree_unless_one_arm_has_none():
    records = [record("engine", 0), record("cold", 0, state="cold"), record("carry", 0, state="carry")]
    assert paired_speedup(records, "carry", "engine").refused is None
    assert "state policy differs" in str(paired_speedup(records, "carry", "cold"))


def test_sampled_outputs_that_are_not_keyed_are_not_compared():
    records = pair(0, 1.0, 0.5, token_ids=(1, 2), keyed=False)
    assert paired_speedup(records, "tree", "engine").refused is None
    assert str(token_equality(records, "tree")) == "not compared"


def test_failed_prompts_are_counted_and_leave_the_rest_alone():
    failed = record("tree", 1, token_ids=(), error="ValueError: x")
    records = [*pair(0, 1.0, 0.5), record("engine", 1), failed]
    assert paired_speedup(records, "tree", "engine").ratio == pytest.approx(2)
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
    assert (summary.eos_share, summary.loop_share) == (0.5, 0.5)
