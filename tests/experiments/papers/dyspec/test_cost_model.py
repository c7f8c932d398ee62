"""Predicted costs of steps, computed by hand."""

import pytest
from helpers.made_outcomes import outcome_of, report_of

from experiments.papers.dyspec.costs import CostModel
from specexp.bench.record import PromptRecord
from specexp.testing.analyses import AnalysisContract


class TestCostModel(AnalysisContract):
    def make_analysis(self):
        return CostModel()


def record(**given) -> PromptRecord:
    seconds = {"draft": 0.06, "build": 0.02, "target": 0.1, "verify": 0.0, "commit": 0.0, "update": 0.02}
    values = {
        "steps": 2,
        "draft_passes": 6,
        "drafted_nodes": 8,
        "token_ids": (1, 2, 3, 4),
        "seconds": seconds,
    }
    return PromptRecord("a", "p", "c", 0, **{**values, **given})


def test_the_models_use_the_runs_own_passes():
    four_nodes = [-1, 0, 1, 2, 0], [-1, 0, 1, 0, 0]  # 3 and 2 deep
    steps = [outcome_of(parents, [1]) for parents in four_nodes]
    (row,) = report_of(CostModel(), *steps, records=[record()]).tables["cost_model"].records()
    assert (row["nodes N"], row["depth D"], row["passes"], row["tokens/step"]) == (4, 2.5, 3, 2)
    assert row["T_d"] == pytest.approx(10)
    assert row["T_t"] == pytest.approx(50)
    assert row["step"] == pytest.approx(100)
    assert row["N*T_d+T_t"] == pytest.approx(90)
    assert row["D*T_d+T_t"] == pytest.approx(75)
    assert [row["per token"], row["by N"], row["by D"]] == pytest.approx([50, 45, 37.5])


def test_without_draft_passes_nothing_is_predicted():
    report = report_of(CostModel(), outcome_of([-1, 0], [1]), records=[record(draft_passes=0)])
    (row,) = report.tables["cost_model"].records()
    assert row["T_d"] is row["N*T_d+T_t"] is row["by D"] is None
    assert row["per token"] == pytest.approx(50)


def test_depths_are_forgotten_at_the_next_run():
    analysis = CostModel()
    for depth, parents in ((3, [-1, 0, 1, 2]), (1, [-1, 0])):
        report = report_of(analysis, outcome_of(parents, [1]), records=[record()])
        assert report.tables["cost_model"].records()[0]["depth D"] == depth
