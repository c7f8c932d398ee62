"""Utilisation of drafts, and which prefixes are accepted: every figure is computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.made_records import outcome_of, report_of, strategy

from experiments.papers.post_use_pre_cut.acceptance import (
    ConfidenceAcceptance,
    PrecutLearning,
    Utilisation,
    rank_correlation,
)
from specexp.core.context import Context
from specexp.verifiers import Greedy

pytestmark = pytest.mark.unit

CHAIN = [-1, 0, 1, 2, 3]


def with_grafts(outcome, *rows):
    grafted = np.isin(np.arange(outcome.tree.tokens.size), rows)
    return replace(outcome, tree=replace(outcome.tree, grafted=grafted))


# --- Utilisation --------------------------------------------------------------------------------------------------


def utilisation(*outcomes):
    return report_of(Utilisation(), *outcomes).tables["utilisation"].records()[0]


def test_accepted_nodes_are_counted_per_step_and_per_drafted_node():
    """3 of 4 drafted nodes are accepted, then 1 of 4, with 4 passes each."""
    steps = [outcome_of(CHAIN, [1, 2, 3]), outcome_of(CHAIN, [1])]
    row = utilisation(*(replace(step, pass_tokens=(1, 1, 1, 1)) for step in steps))
    assert (row["accepted/step"], row["with bonus"]) == (2, 3)
    assert row["accepted / drafted"] == pytest.approx(4 / 8)
    assert row["tokens / draft pass"] == pytest.approx(6 / 8)
    ended = utilisation(outcome_of(CHAIN, [1, 2], bonus=False))
    assert (ended["accepted/step"], ended["with bonus"]) == (2, 2)


def test_grafted_phrases_are_counted_separately():
    """A chain of 2, and a phrase of 2 below it of which the first is accepted: 2 of 2 and 1 of 2."""
    row = utilisation(with_grafts(outcome_of(CHAIN, [1, 2, 3]), 3, 4))
    assert (row["of the drafter's"], row["of grafted phrases'"], row["accepted / drafted"]) == (1, 0.5, 0.75)


def test_utilisation_runs_over_the_questions_and_grafts_are_left_out():
    """1 of 4 drafted nodes, then 3 of 4; then, without two grafts, 2 of 2."""
    analysis = PrecutLearning()
    analysis.begin({"a": strategy(Greedy())})
    steps = [outcome_of(CHAIN, [1]), outcome_of(CHAIN, [1, 2, 3])]
    steps.append(with_grafts(outcome_of(CHAIN, [1, 2, 3]), 3, 4))
    for number, outcome in enumerate(steps):
        analysis.observe("a", replace(outcome, context=Context([1], sequence=f"question {number}")))
    assert analysis.running("a") == [pytest.approx(share) for share in (1 / 4, 4 / 8, 6 / 10)]
    row = analysis.report([]).tables["precut_learning"].records()[0]
    assert (row["first half"], row["second half"]) == (pytest.approx(4 / 8), pytest.approx(2 / 2))


# --- Confidence and acceptance ------------------------------------------------------------------------------------

PREFIXES = [-1, 0, 1, 2]
Q = [1.0, 0.9, 0.5, 0.5]  # products 0.9, 0.45, 0.225


def confidence(*outcomes, edges=(0, 0.25, 0.5, 0.75, 1)):
    analysis = ConfidenceAcceptance()
    analysis.edges = np.array(edges)
    return report_of(analysis, *outcomes).tables["confidence_acceptance"].records()


def shares(rows):
    return [(row["product"], row["accepted"]) for row in rows]


def test_a_prefix_is_accepted_whole_or_not():
    rows = confidence(outcome_of(PREFIXES, [1], q=Q), outcome_of(PREFIXES, [1, 2], q=Q))
    assert shares(rows) == [("0 to 0.25", 0.0), ("0.25 to 0.5", 0.5), ("0.75 to 1", 1.0), ("all", 0.5)]
    assert [row["prefixes"] for row in rows] == [2, 2, 2, 6]
    assert [row["mean product"] for row in rows[:3]] == pytest.approx([0.225, 0.45, 0.9])
    assert [row["mean length"] for row in rows] == [3, 2, 1, 2]


def test_in_a_tree_the_most_probable_path_counts():
    """It goes by row 2; accepted is row 1 and what is below it."""
    rows = confidence(outcome_of([-1, 0, 0, 1, 2], [1, 3], q=[1, 0.3, 0.6, 0.9, 0.5]))
    assert shares(rows) == [("0.25 to 0.5", 0.0), ("0.5 to 0.75", 0.0), ("all", 0.0)]


def test_the_rank_correlation_is_spearmans():
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([1.0, 8, 27, 64])) == pytest.approx(1)
    ties = rank_correlation(np.array([1.0, 2, 3]), np.array([0.0, 1, 1]))  # ranks 1, 2, 3 and 1, 2.5, 2.5
    assert ties == pytest.approx(np.sqrt(3) / 2)
    assert rank_correlation(np.ones(3), np.arange(3.0)) is None


def test_the_highest_rank_correlation_has_the_largest_products_accepted():
    # one of six prefixes is accepted, that with the fourth product
    rows = confidence(outcome_of(PREFIXES, [], q=Q), outcome_of(PREFIXES, [1], q=[1.0, 0.3, 0.5, 0.5]))
    assert rows[-1]["rank correlation"] == pytest.approx(1.5 / np.sqrt(17.5 * 7.5))
    assert rows[-1]["highest"] == pytest.approx(7.5 / np.sqrt(17.5 * 7.5))


def test_a_rank_correlation_has_fishers_interval_by_its_steps():
    rows = confidence(*[outcome_of(PREFIXES, [], q=Q)] * 6, outcome_of(PREFIXES, [1], q=[1.0, 0.3, 0.5, 0.5]))
    correlation, low, high = (rows[-1][f"rank correlation{end}"] for end in ("", " low", " high"))
    for end, z in ((low, -1.96), (high, 1.96)):
        assert np.arctanh(end) == pytest.approx(np.arctanh(correlation) + z / 2)  # 7 steps
