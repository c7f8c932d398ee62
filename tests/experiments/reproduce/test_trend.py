"""The test of a trend is arithmetic: figures with intervals made by hand, inequalities read from text."""

import pytest

from experiments.reproduce.trend import Clause, verdict

FIGURES = {"tree": (3.0, 2.8, 3.2), "chain": (2.0, 1.9, 2.1), "wide": (3.1, 2.9, 3.3)}


def outcome_of(text):
    return Clause.parse(text).test(lambda term: FIGURES[term.place[0]])


@pytest.mark.parametrize(
    ("text", "holds", "within_noise"),
    [
        ("tokens_per_step{tree} > tokens_per_step{chain}", True, False),
        ("tokens_per_step{chain} >= tokens_per_step{tree}", False, False),
        ("tokens_per_step{wide} > tokens_per_step{tree} > tokens_per_step{chain}", True, True),
        ("tokens_per_step{tree} > 1.6 * tokens_per_step{chain}", False, True),
        ("tokens_per_step{tree} > 1.2 * tokens_per_step{chain}", True, False),
        ("2.5 > tokens_per_step{chain} > 1", True, False),
        ("tokens_per_step{chain} < 2.05", True, True),
    ],
)
def test_a_clause_holds_where_every_inequality_does_and_is_noise_where_intervals_meet(
    text, holds, within_noise
):
    outcome = outcome_of(text)
    assert (outcome.holds, outcome.within_noise) == (holds, within_noise)


def test_a_term_names_a_metric_or_a_column_of_a_table_and_its_place():
    (term, other) = Clause.parse(
        "roles: with prefills{main | SEED, (4,2,1,1) | GSM8K} > 0.9 * alpha{x}"
    ).terms
    assert (term.figure, term.place, term.factor) == (
        "roles: with prefills",
        ("main", "SEED, (4,2,1,1)", "GSM8K"),
        1.0,
    )
    assert (other.figure, other.place, other.factor) == ("alpha", ("x",), 0.9)


def test_a_verdict_counts_clauses():
    right, wrong = outcome_of("tokens_per_step{tree} > 1"), outcome_of("tokens_per_step{tree} < 1")
    assert verdict([right, right]) == "agrees"
    assert verdict([right, wrong]) == "partly (1 of 2 tests)"
    assert verdict([wrong]) == "disagrees"
    assert (
        verdict([right, outcome_of("tokens_per_step{wide} > tokens_per_step{tree}")])
        == "agrees, within noise"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("alpha{tree}", "must compare a figure"),
        ("1 > 2", "must compare a figure"),
        ("alpha{tree} > alpha", "'alpha' must be a number, FIGURE{ARM}"),
    ],
)
def test_what_is_no_test_is_refused(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        Clause.parse(text)
