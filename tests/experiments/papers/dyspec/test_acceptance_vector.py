"""Places of accepted children, counted by hand."""

import json

import pytest
from helpers.made_outcomes import outcome_of, strategy

from experiments.papers.dyspec.trees import AcceptanceVector
from specexp.testing.analyses import AnalysisContract
from specexp.verifiers import Greedy

TWICE_TWO = [-1, 0, 0, 1, 1]  # the root and its first child have two children each


class TestAcceptanceVector(AnalysisContract):
    def make_analysis(self):
        return AcceptanceVector(width=3)


def vector_of(*outcomes, **arguments):
    analysis = AcceptanceVector(**{"width": 2, **arguments})
    analysis.begin({"a": strategy(Greedy()), "b": strategy(Greedy())})
    for arm, outcome in outcomes:
        analysis.observe(arm, outcome)
    files = analysis.report([]).files
    return json.loads(files["acceptance.json"]) if files else None


def test_each_visited_node_counts_once():
    steps = [
        outcome_of(TWICE_TWO, [1, 4]),  # first below the root, second below it; the leaf has no children
        outcome_of(TWICE_TWO, [1]),  # first, then none
        outcome_of(TWICE_TWO, []),  # none
        outcome_of(TWICE_TWO, [2]),  # second, a leaf
    ]
    found = vector_of(*(("a", step) for step in steps))
    assert found["accepted"] == [2, 2]
    assert found["visited"] == 6
    assert found["acceptance"] == pytest.approx([2 / 6, 2 / 6, 2 / 6])
    assert found["arm"] == "a"


def test_an_output_that_ends_in_the_draft_says_nothing_of_the_last_node():
    assert vector_of(("a", outcome_of(TWICE_TWO, [1], bonus=False)))["acceptance"] == [1.0, 0.0, 0.0]


def test_children_are_counted_in_the_order_drawn():
    drawn = outcome_of([-1, 0, 0, 0], [1], draws={0: (3, 2, 3, 1)})
    assert vector_of(("a", drawn), width=4)["acceptance"] == [0, 0, 0, 1, 0]
    assert vector_of(("a", drawn), width=2)["acceptance"] == [0, 0, 1]  # beyond the width: none of them
    assert vector_of(("a", outcome_of([-1, 0, 0, 0], [3], draws={0: (3, 2, 3, 1)})))["acceptance"] == [
        1,
        0,
        0,
    ]


def test_narrow_nodes_are_left_out():
    assert vector_of(("a", outcome_of([-1, 0], [1]))) is None
    assert vector_of(("a", outcome_of([-1, 0, 0, 1], [1, 3])))["visited"] == 1


def test_the_file_is_of_the_first_arm():
    steps = [("a", outcome_of(TWICE_TWO, [])), ("b", outcome_of(TWICE_TWO, [2]))]
    assert vector_of(*steps)["acceptance"] == [0, 0, 1]


def test_what_is_missing_is_said():
    analysis = AcceptanceVector(width=2)
    analysis.begin({"a": strategy(Greedy())})
    assert "a: no visited node had 2 children" in analysis.report([]).tables["acceptance"].to_markdown()
