"""Which nodes count as tried, and what is said of them."""

import numpy as np
import pytest
from helpers.made_outcomes import outcome_of, report_of, strategy

from experiments.papers.dyspec.trees import AcceptanceHeatMap, _rates
from specexp.testing.analyses import AnalysisContract
from specexp.verifiers import Greedy, RejectionSampling

PARENTS = [-1, 0, 0, 0, 1]
Q = [1.0, 0.65, 0.25, 0.05, 0.95]


class TestAcceptanceHeatMap(AnalysisContract):
    def make_analysis(self):
        return AcceptanceHeatMap()


def rows_of(verifier, *outcomes):
    report = report_of(AcceptanceHeatMap(), *outcomes, parts=strategy(verifier))
    return report.tables["draft_vs_acceptance"].records()


def test_children_are_tried_up_to_the_accepted_one():
    rows = rows_of(RejectionSampling(), outcome_of(PARENTS, [2], q=Q))
    assert [(row["q"], row["nodes"], row["accepted"]) for row in rows] == [
        ("0.2 to 0.3", 1, 1.0),
        ("0.6 to 0.7", 1, 0.0),
        ("all", 2, 0.5),
    ]


def test_children_of_rejected_nodes_are_not_tried():
    rows = rows_of(RejectionSampling(), outcome_of(PARENTS, [], q=Q))
    assert [row["q"] for row in rows] == ["0.0 to 0.1", "0.2 to 0.3", "0.6 to 0.7", "all"]
    assert rows[-1]["accepted"] == 0


def test_children_of_accepted_nodes_are():
    rows = rows_of(RejectionSampling(), outcome_of(PARENTS, [1], q=Q))
    assert [(row["q"], row["accepted"]) for row in rows[:-1]] == [("0.6 to 0.7", 1.0), ("0.9 to 1.0", 0.0)]


def test_a_node_drawn_twice_is_one():
    assert rows_of(RejectionSampling(), outcome_of(PARENTS, [], q=Q, draws={0: (1, 1, 2)}))[-1]["nodes"] == 3


def test_trees_without_probabilities_are_left_out():
    assert rows_of(RejectionSampling(), outcome_of(PARENTS, [1])) == []


def test_p_is_what_the_verifier_sees():
    law = np.tile([0.0, 0.5, 0.3, 0.2, 0.0, 0.0, 0.0, 0.0], (5, 1))
    step = outcome_of(PARENTS, [], q=Q, p=law)
    assert [row["mean p"] for row in rows_of(RejectionSampling(), step)[:-1]] == pytest.approx(
        [0.2, 0.3, 0.5]
    )
    assert [row["mean p"] for row in rows_of(RejectionSampling(top_k=2), step)[:-1]] == pytest.approx(
        [0, 0.375, 0.625]
    )
    assert [row["mean p"] for row in rows_of(Greedy(), step)[:-1]] == pytest.approx([0, 0, 1])


def test_the_correlation_is_of_all_nodes():
    law = np.tile([0.0, 0.65, 0.25, 0.05, 0.05, 0.0, 0.0, 0.0], (5, 1))
    same = rows_of(RejectionSampling(), outcome_of(PARENTS, [], q=Q, p=law))[-1]
    assert same["correlation q, p"] == pytest.approx(1, abs=1e-6)
    assert same["correlation q, accepted"] is None  # nothing was


def test_rates_are_of_whole_groups_of_a_column():
    q = np.array([0.1, 0.9, 0.1, 0.1, 0.1, 1.0, 0.1])
    accepted = np.array([1, 0, 0, 1, 1, 1, 1])
    middle, rate = _rates(q, accepted, np.array([0, 0.5, 1.0]), 2)
    assert middle.tolist() == [0.25, 0.25, 0.75]
    assert rate.tolist() == [0.5, 1.0, 0.5]
