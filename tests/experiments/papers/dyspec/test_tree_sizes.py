"""Sizes of trees, counted by hand."""

import pytest
from helpers.made_outcomes import outcome_of, report_of, strategy

from experiments.papers.dyspec.trees import TreeSizes
from specexp.controllers import ThresholdTracker
from specexp.testing.analyses import AnalysisContract
from specexp.verifiers import Greedy


class TestTreeSizes(AnalysisContract):
    def make_analysis(self):
        return TreeSizes()


def test_sizes_budget_and_acceptance():
    steps = [([-1, 0, 0, 1, 1], [1]), ([-1, 0, 0, 1, 1], []), ([-1, 0], [1]), ([-1], [])]
    report = report_of(
        TreeSizes(), *(outcome_of(*step) for step in steps), parts=strategy(Greedy(), max_nodes=4)
    )
    (row,) = report.tables["tree_sizes"].records()
    assert row["steps"] == 4
    assert row["mean nodes"] == pytest.approx(9 / 4)
    assert row["median"] == pytest.approx(2.5)
    assert row["largest"] == row["budget"] == 4
    assert row["budget used"] == pytest.approx(9 / 16)
    assert row["steps at the cap"] == pytest.approx(0.5)
    assert row["accepted"] == pytest.approx(0.5)
    assert row["accepted nodes"] == pytest.approx(2 / 9)


@pytest.mark.parametrize(("aim", "budget"), [("budget", 2), ("goodput", 4)])
def test_the_budget_is_the_mean_a_controller_keeps_and_the_cap_the_builders(aim, budget):
    tracked = strategy(Greedy(), max_nodes=4)._replace(controller=ThresholdTracker(aim=aim, budget=2))
    steps = outcome_of([-1, 0, 0, 1, 1], []), outcome_of([-1, 0], [])
    (row,) = report_of(TreeSizes(), *steps, parts=tracked).tables["tree_sizes"].records()
    assert row["budget"] == budget
    assert row["budget used"] == pytest.approx(2.5 / budget)
    assert row["steps at the cap"] == pytest.approx(0.5)


def test_the_picture_may_be_of_some_arms():
    analysis = TreeSizes(arms=["b"])
    analysis.begin({"a": strategy(Greedy()), "b": strategy(Greedy())})
    for arm in "ab":
        analysis.observe(arm, outcome_of([-1, 0, 0], [1]))
    report = analysis.report([])
    assert len(report.tables["tree_sizes"].rows) == 2
    assert report.figures["tree_sizes"].axes[0].get_title(loc="left") == "b (mean 2.0 of 8)"


def test_the_picture_ends_at_the_steps_asked_for():
    picture = report_of(TreeSizes(most_steps=3), *9 * [outcome_of([-1, 0, 0], [1])]).figures["tree_sizes"]
    assert picture.axes[0].get_xlim() == (-0.5, 2.5)
    assert len(picture.axes[2].lines[0].get_xdata()) == 3  # accepted nodes, on an axis of their own
