"""Which prefixes count, and what is said of them: every figure here is computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.examples import examples
from helpers.made_outcomes import outcome_of, report_of
from hypothesis import given, strategies as st

from experiments.papers.post_use_pre_cut.acceptance import (
    ConfidenceAcceptance,
    rank_correlation,
    wilson_interval,
)
from specexp.testing.analyses import AnalysisContract

CHAIN = [-1, 0, 1, 2]
Q = [1.0, 0.9, 0.5, 0.5]  # products 0.9, 0.45, 0.225


class TestConfidenceAcceptance(AnalysisContract):
    def make_analysis(self):
        return ConfidenceAcceptance()


def rows_of(*outcomes, edges=(0, 0.25, 0.5, 0.75, 1)):
    analysis = ConfidenceAcceptance()
    analysis.edges = np.array(edges)
    return report_of(analysis, *outcomes).tables["confidence_acceptance"].records()


def test_a_prefix_is_accepted_whole_or_not():
    rows = rows_of(outcome_of(CHAIN, [1], q=Q), outcome_of(CHAIN, [1, 2], q=Q))
    assert [(row["product"], row["prefixes"], row["accepted"]) for row in rows] == [
        ("0 to 0.25", 2, 0.0),
        ("0.25 to 0.5", 2, 0.5),
        ("0.75 to 1", 2, 1.0),
        ("all", 6, 0.5),
    ]
    assert [row["mean product"] for row in rows[:3]] == pytest.approx([0.225, 0.45, 0.9])
    assert [row["mean length"] for row in rows] == [3, 2, 1, 2]


def test_the_bins_tell_small_products_apart():
    """Products 0.5, 0.005 and 0.00005."""
    rows = rows_of(outcome_of(CHAIN, [1], q=[1.0, 0.5, 0.01, 0.01]), edges=(0, 0.0001, 0.01, 1))
    assert [(row["product"], row["accepted"]) for row in rows[:-1]] == [
        ("0 to 0.0001", 0.0),
        ("0.0001 to 0.01", 0.0),
        ("0.01 to 1", 1.0),
    ]


def test_in_a_tree_the_most_probable_path_counts():
    """It goes by row 2; accepted is row 1 and what is below it."""
    tree = [-1, 0, 0, 1, 2]
    rows = rows_of(outcome_of(tree, [1, 3], q=[1, 0.3, 0.6, 0.9, 0.5]))
    assert [(row["product"], row["accepted"]) for row in rows] == [
        ("0.25 to 0.5", 0.0),
        ("0.5 to 0.75", 0.0),
        ("all", 0.0),
    ]


def test_grafts_have_no_confidence():
    step = outcome_of(CHAIN, [1, 2, 3], q=[1.0, 0.9, 0.5, np.nan])
    tree = replace(step.tree, grafted=np.array([False, False, False, True]))
    assert rows_of(replace(step, tree=tree))[-1]["prefixes"] == 2


def test_what_the_end_of_the_output_cut_off_is_not_rejected():
    rows = rows_of(outcome_of(CHAIN, [1], bonus=False, q=Q))
    assert (rows[-1]["prefixes"], rows[-1]["accepted"]) == (1, 1)
    rows = rows_of(outcome_of(CHAIN, [], q=Q))  # the first was rejected
    assert (rows[-1]["prefixes"], rows[-1]["accepted"]) == (3, 0)


def test_the_interval_counts_steps():
    """Two prefixes of one step in one bin are one try: Wilson's of 0 of 1."""
    (row, _) = rows_of(outcome_of([-1, 0, 1], [], q=[1.0, 0.9, 0.95]))
    assert (row["prefixes"], row["steps"], row["from"]) == (2, 1, 0)
    assert row["to"] == pytest.approx(1.96**2 / (1 + 1.96**2), abs=1e-4)


@examples(50)
@given(share=st.sampled_from([0.0, 1.0]) | st.floats(0, 1), tries=st.integers(1, 5000))
def test_an_interval_holds_its_share(share, tries):
    low, high = wilson_interval(share, tries)
    assert -1e-9 <= low <= share <= high <= 1 + 1e-9


def test_the_rank_correlation_is_spearmans():
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([1.0, 8, 27, 64])) == pytest.approx(1)
    ties = rank_correlation(np.array([1.0, 2, 3]), np.array([0.0, 1, 1]))  # ranks 1, 2, 3 and 1, 2.5, 2.5
    assert ties == pytest.approx(np.sqrt(3) / 2)
    assert rank_correlation(np.ones(3), np.arange(3.0)) is None


def test_drafters_without_probabilities_are_left_out():
    assert rows_of(outcome_of(CHAIN, [1])) == []
