"""Utilisation is arithmetic on counts: every figure here is computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.made_outcomes import outcome_of, report_of

from experiments.papers.post_use_pre_cut.acceptance import Utilisation
from specexp.testing.analyses import AnalysisContract

LLAMA = {"method": "Llama 2", "accepted": 5.72, "utilisation": 0.475}


class TestUtilisation(AnalysisContract):
    def make_analysis(self):
        return Utilisation([LLAMA, {"method": "other"}])


def with_grafts(outcome, rows):
    grafted = np.isin(np.arange(outcome.tree.tokens.size), rows)
    return replace(outcome, tree=replace(outcome.tree, grafted=grafted))


def row_of(*outcomes):
    return report_of(Utilisation(), *outcomes).tables["utilisation"].records()[0]


CHAIN = [-1, 0, 1, 2, 3]


def test_both_senses_of_utilisation_are_told_apart():
    """Of 4 drafted 3 are accepted, then of 4 drafted 1, with 4 passes each."""
    steps = [outcome_of(CHAIN, [1, 2, 3]), outcome_of(CHAIN, [1])]
    row = row_of(*(replace(step, pass_tokens=(1, 1, 1, 1)) for step in steps))
    assert row["accepted/step"] == 2
    assert row["with bonus"] == 3
    assert row["accepted / drafted"] == pytest.approx(4 / 8)
    assert row["tokens / draft pass"] == pytest.approx(6 / 8)


def test_what_ends_the_output_has_no_bonus():
    row = row_of(outcome_of(CHAIN, [1, 2], bonus=False))
    assert (row["accepted/step"], row["with bonus"]) == (2, 2)


def test_grafted_phrases_are_counted_apart():
    """A chain of 2, and a phrase of 2 below it of which the first is accepted: 2 of 2 and 1 of 2."""
    row = row_of(with_grafts(outcome_of(CHAIN, [1, 2, 3]), [3, 4]))
    assert row["of the drafter's"] == 1
    assert row["of grafted phrases'"] == 0.5
    assert row["accepted / drafted"] == 0.75


def test_a_step_without_drafts_is_a_step():
    row = row_of(outcome_of([-1], []), outcome_of(CHAIN, [1, 2, 3, 4]))
    assert (row["accepted/step"], row["accepted / drafted"]) == (2, 1)
    assert row["of grafted phrases'"] is None


def test_published_rows_are_marked_and_drawn_hollow():
    report = report_of(Utilisation([LLAMA]), outcome_of(CHAIN, [1]))
    label, accepted, tokens, _, share, *rest = report.tables["utilisation"].rows[-1]
    assert (label, accepted, share) == ("Llama 2 (not run here)", 5.72, 0.475)
    assert tokens == pytest.approx(6.72)
    assert rest == [None] * 4
    (axes,) = report.figures["utilisation"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "Llama 2 (not run here)"]
