"""Utilisation by question, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.made_outcomes import outcome_of, strategy

from experiments.papers.post_use_pre_cut.acceptance import PrecutLearning
from specexp.core.context import Context
from specexp.testing.analyses import AnalysisContract
from specexp.verifiers import Greedy

CHAIN = [-1, 0, 1, 2, 3]


class TestPrecutLearning(AnalysisContract):
    def make_analysis(self):
        return PrecutLearning()


def test_utilisation_runs_over_the_questions_and_grafts_are_left_out():
    """Of 4 drafted 1, then of 4 drafted 3; then, with two of them grafts, of 2 drafted 2."""
    analysis = PrecutLearning()
    analysis.begin({"a": strategy(Greedy())})
    grafted = outcome_of(CHAIN, [1, 2, 3])
    grafted = replace(
        grafted, tree=replace(grafted.tree, grafted=np.array([False, False, False, True, True]))
    )
    for number, outcome in enumerate((outcome_of(CHAIN, [1]), outcome_of(CHAIN, [1, 2, 3]), grafted)):
        analysis.observe("a", replace(outcome, context=Context([1], sequence=f"question {number}")))
    assert analysis.running("a") == [pytest.approx(share) for share in (1 / 4, 4 / 8, 6 / 10)]
    row = analysis.report([]).tables["precut_learning"].records()[0]
    assert (row["first half"], row["second half"]) == (pytest.approx(4 / 8), pytest.approx(2 / 2))
