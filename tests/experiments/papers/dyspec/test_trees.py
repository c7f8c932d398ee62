"""Tokens per step, places and rates of accepted children and sizes of trees: every figure is computed by hand."""

import json

import numpy as np
import pytest
from helpers.made_records import outcome_of, report_of, strategy

from experiments.papers.dyspec.trees import AcceptanceHeatMap, AcceptanceVector, TreeSizes
from specexp.controllers import ThresholdTracker
from specexp.verifiers import Greedy, RejectionSampling

pytestmark = pytest.mark.unit

# --- Places of accepted children ----------------------------------------------------------------------------------

TWICE_TWO = [-1, 0, 0, 1, 1]  # the root and its first child have two children each


def vector_of(*outcomes, width=2):
    analysis = AcceptanceVector(width=width)
    analysis.begin({"a": strategy(Greedy()), "b": strategy(Greedy())})
    for arm, outcome in outcomes:
        analysis.observe(arm, outcome)
    report = analysis.report([])
    return json.loads(report.files["acceptance.json"]) if report.files else report.tables["acceptance"]


def test_each_visited_node_counts_once():
    steps = [
        outcome_of(TWICE_TWO, [1, 4]),  # first below the root, second below it; the leaf has no children
        outcome_of(TWICE_TWO, [1]),  # first, then none
        outcome_of(TWICE_TWO, []),  # none
        outcome_of(TWICE_TWO, [2]),  # second, a leaf
    ]
    found = vector_of(*(("a", step) for step in steps))
    assert (found["accepted"], found["visited"], found["arm"]) == ([2, 2], 6, "a")
    assert found["acceptance"] == pytest.approx([2 / 6, 2 / 6, 2 / 6])


DRAWN = {0: (3, 2, 3, 1)}


@pytest.mark.parametrize(
    ("outcome", "width", "acceptance"),
    [
        # the output ends in the draft: nothing is known of the last node
        (outcome_of(TWICE_TWO, [1], bonus=False), 2, [1, 0, 0]),
        # children are counted in the order drawn, none beyond the width
        (outcome_of([-1, 0, 0, 0], [1], draws=DRAWN), 4, [0, 0, 0, 1, 0]),
        (outcome_of([-1, 0, 0, 0], [1], draws=DRAWN), 2, [0, 0, 1]),
        (outcome_of([-1, 0, 0, 0], [3], draws=DRAWN), 2, [1, 0, 0]),
        # narrow nodes are left out
        (outcome_of([-1, 0, 0, 1], [1, 3]), 2, [1, 0, 0]),
    ],
)
def test_a_child_counts_at_its_place(outcome, width, acceptance):
    assert vector_of(("a", outcome), width=width)["acceptance"] == acceptance


def test_the_file_is_of_the_first_arm_if_it_has_wide_nodes():
    steps = [("a", outcome_of(TWICE_TWO, [])), ("b", outcome_of(TWICE_TWO, [2]))]
    assert vector_of(*steps)["acceptance"] == [0, 0, 1]
    table = vector_of(("a", outcome_of([-1, 0], [1])))
    assert "a: no visited node had 2 children" in table.to_markdown()


# --- Draft probability and acceptance -----------------------------------------------------------------------------

PARENTS = [-1, 0, 0, 0, 1]
Q = [1.0, 0.65, 0.25, 0.05, 0.95]


def heat(verifier, *outcomes):
    report = report_of(AcceptanceHeatMap(), *outcomes, parts=strategy(verifier))
    return report.tables["draft_vs_acceptance"].records()


@pytest.mark.parametrize(
    ("accepted", "tried"),
    [
        ([2], [("0.2 to 0.3", 1.0), ("0.6 to 0.7", 0.0)]),  # up to the accepted one
        ([], [("0.0 to 0.1", 0.0), ("0.2 to 0.3", 0.0), ("0.6 to 0.7", 0.0)]),  # none below a rejected one
        ([1], [("0.6 to 0.7", 1.0), ("0.9 to 1.0", 0.0)]),  # those below an accepted one
    ],
)
def test_which_children_were_tried(accepted, tried):
    *rows, total = heat(RejectionSampling(), outcome_of(PARENTS, accepted, q=Q))
    assert [(row["q"], row["accepted"]) for row in rows] == tried
    assert (total["nodes"], total["accepted"]) == (len(tried), sum(share for _, share in tried) / len(tried))


def test_acceptance_and_correlation_have_intervals():
    *_, total = heat(RejectionSampling(), *[outcome_of(PARENTS, accepted, q=Q) for accepted in ([2], [1], [])])
    assert total["accepted low"] < total["accepted"] < total["accepted high"]
    few = heat(RejectionSampling(), outcome_of(PARENTS, [1], q=Q))[-1]
    assert few["correlation q, p low"] is None


def test_a_residual_is_the_probability_among_what_elder_siblings_leave():
    rows = heat(RejectionSampling(), outcome_of(PARENTS, [], q=Q))[:-1]
    assert [row["mean residual"] for row in rows] == pytest.approx([0.05 / 0.1, 0.25 / 0.35, 0.65])


@pytest.mark.parametrize(
    ("verifier", "means"),
    [
        (RejectionSampling(), [0.2, 0.3, 0.5]),
        (RejectionSampling(top_k=2), [0, 0.375, 0.625]),
        (Greedy(), [0, 0, 1]),
    ],
)
def test_p_is_the_law_of_the_verifier(verifier, means):
    law = np.tile([0.0, 0.5, 0.3, 0.2, 0.0, 0.0, 0.0, 0.0], (5, 1))
    rows = heat(verifier, outcome_of(PARENTS, [], q=Q, p=law))[:-1]
    assert [row["mean p"] for row in rows] == pytest.approx(means)


# --- Sizes of trees -----------------------------------------------------------------------------------------------


def test_sizes_budget_and_acceptance():
    steps = [(TWICE_TWO, [1]), (TWICE_TWO, []), ([-1, 0], [1]), ([-1], [])]
    report = report_of(TreeSizes(), *(outcome_of(*step) for step in steps), parts=strategy(Greedy(), max_nodes=4))
    (row,) = report.tables["tree_sizes"].records()
    assert (row["steps"], row["mean nodes"], row["median"]) == (4, pytest.approx(9 / 4), pytest.approx(2.5))
    assert row["largest"] == row["budget"] == 4
    assert (row["budget used"], row["steps at the cap"]) == (pytest.approx(9 / 16), pytest.approx(0.5))
    assert (row["accepted"], row["accepted nodes"]) == (pytest.approx(0.5), pytest.approx(2 / 9))


@pytest.mark.parametrize(("aim", "budget"), [("budget", 2), ("goodput", 4)])
def test_the_budget_is_the_mean_a_controller_keeps_and_the_cap_the_builders(aim, budget):
    tracked = strategy(Greedy(), max_nodes=4)._replace(controller=ThresholdTracker(aim=aim, budget=2))
    steps = outcome_of(TWICE_TWO, []), outcome_of([-1, 0], [])
    (row,) = report_of(TreeSizes(), *steps, parts=tracked).tables["tree_sizes"].records()
    assert (row["budget"], row["budget used"]) == (budget, pytest.approx(2.5 / budget))
    assert row["steps at the cap"] == pytest.approx(0.5)
