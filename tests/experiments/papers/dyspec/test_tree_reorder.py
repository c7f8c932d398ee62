"""Blocks of random and of observed trees."""

import pytest
from helpers.made_outcomes import outcome_of, report_of, strategy

from experiments.papers.dyspec.token_order import TreeReorder
from specexp.builders import DySpecGreedy
from specexp.testing.analyses import AnalysisContract
from specexp.verifiers import Greedy

TWO_CHAINS = [-1, 0, 0, 1, 2, 3, 4, 5]  # built breadth first, each chain in every other row


class TestTreeReorder(AnalysisContract):
    def make_analysis(self):
        return small(block=32)


def small(**settings):
    analysis = TreeReorder()
    for name, value in {"block": 2, "prefixes": (0, 2, 4), "random_trees": 1, **settings}.items():
        setattr(analysis, name, value)
    return analysis


def reordered(*outcomes, **settings):
    return report_of(
        small(**settings), *outcomes, parts=strategy(Greedy())._replace(builder=DySpecGreedy(768))
    )


def test_random_trees_stand_beside_the_papers():
    rows = TreeReorder().report([]).tables["tree_reorder_random"].records()
    assert [row["rows"] for row in rows] == ["256", "512", "1024", "2048"]
    for row in rows:
        assert row["depth-first"] == pytest.approx(row["reordered, paper"], rel=0.05)
        assert row["unordered"] == pytest.approx(row["unordered, paper"], rel=0.01)
        assert row["depth-first to paper"] == pytest.approx(row["depth-first"] / row["reordered, paper"] - 1)


def test_published_counts_are_of_blocks_of_32():
    rows = small(block=16).report([]).tables["tree_reorder_random"].records()
    assert {row["reordered, paper"] for row in rows} == {None}


def test_blocks_of_the_runs_trees_over_the_prefix():
    rows = reordered(outcome_of(TWO_CHAINS, [1])).tables["tree_reorder_real"].records()
    assert [row["prefix"] for row in rows] == [0, 2, 4]
    assert [row["as built"] for row in rows] == [
        10,
        14,
        18,
    ]  # 4 block rows: the whole triangle, 4 more a column
    assert [row["depth-first"] for row in rows] == [9, 13, 17]
    assert {row["heap order"] for row in rows} == {None}  # no draft probabilities
    assert {row["mean nodes"] for row in rows} == {7}


def test_the_heaps_order_needs_values():
    values = [1, 0.9, 0.1, 0.81, 0.05, 0.729, 0.025, 0.6561]
    row = reordered(outcome_of(TWO_CHAINS, [1], values=values)).tables["tree_reorder_real"].records()[0]
    assert row["heap order"] == 9  # the likelier chain first
    assert row["as built"] == 10


def test_trees_smaller_than_a_block_are_left_out():
    assert "tree_reorder_real" not in reordered(outcome_of([-1, 0], [1])).tables
    steps = [outcome_of(TWO_CHAINS, [1]) for _ in range(5)]
    assert reordered(*steps, most_trees=3).tables["tree_reorder_real"].records()[0]["trees"] == 3


def test_the_papers_figures_stand_beside_trees_of_their_size():
    steps = [outcome_of([-1, *range(40)], [1])]
    table = reordered(*steps, block=32).tables["tree_reorder_real"].to_markdown()
    assert "paper (not run here)" in table
    assert "366.12" in table
    assert "218.31" in table
