"""The test of a trend is arithmetic: figures with intervals made by hand, inequalities read from text."""

import re

import pytest

from experiments.reproduce.trend import Clause, Term, proportion, verdict

pytestmark = pytest.mark.unit

FIGURES = {"tree": (3.0, 2.8, 3.2), "chain": (2.0, 1.9, 2.1), "wide": (3.1, 2.9, 3.3)}


def clause_of(text):
    """Return a clause in which ``tree`` stands for the tokens per step of that arm."""
    for arm in FIGURES:
        text = text.replace(arm, f"figure('tokens_per_step', '{arm}')")
    return Clause(text)


def outcome_of(text, *ratios):
    """Test a clause, with the ratios of its inequalities if they are paired."""
    clause = clause_of(text)
    return clause.test(lambda term: FIGURES[term.place[0]], dict(zip(clause.inequalities, ratios, strict=False)))


@pytest.mark.parametrize(
    ("text", "holds", "within_noise"),
    [
        ("tree > chain", True, False),
        ("chain >= tree", False, False),
        ("wide > tree > chain", True, True),
        ("tree > 1.6 * chain", False, True),
        ("tree > 1.2 * chain", True, False),
        ("2.5 > chain > 1", True, False),
        ("chain < 2.05", True, True),
    ],
)
def test_a_clause_holds_where_every_inequality_does_and_is_noise_where_intervals_meet(text, holds, within_noise):
    outcome = outcome_of(text)
    assert (outcome.holds, outcome.within_noise) == (holds, within_noise)


@pytest.mark.parametrize(
    ("text", "ratio", "holds", "within_noise"),
    [
        ("wide > tree", (1.03, 1.01, 1.05), True, False),  # the arms' own intervals overlap
        ("tree > chain", (1.5, 0.9, 2.1), True, True),
        ("chain > tree", (0.67, 0.6, 0.7), False, False),
    ],
)
def test_a_paired_ratio_decides_in_place_of_two_intervals(text, ratio, holds, within_noise):
    outcome = outcome_of(text, ratio)
    assert (outcome.holds, outcome.within_noise) == (holds, within_noise)
    assert f"(ratio {ratio[0]:.4g} [{ratio[1]:.4g}, {ratio[2]:.4g}]): " in str(outcome)


def test_a_difference_adds_the_squares_of_what_separate_intervals_change():
    outcome = outcome_of("tree > chain")
    assert [*outcome.differences.values()] == [pytest.approx([1.0, 1 - 0.05**0.5, 1 + 0.05**0.5])]
    assert "(difference 1 [0.7764, 1.224]): holds" in str(outcome)


def test_two_intervals_that_meet_may_differ():
    outcome = outcome_of("wide > 0.9 * tree")  # 2.9 to 3.3 against 2.52 to 2.88, then against 2.88 at most
    assert not outcome.within_noise
    assert not outcome_of("1.14 * tree > wide").within_noise  # 3.192 to 3.648 against 2.9 to 3.3


def test_a_figure_without_an_interval_decides_nothing():
    clause = Clause("figure('times: share', 'tree') > 0.5")
    outcome = clause.test(lambda _: (0.9,))
    assert (outcome.holds, outcome.within_noise) == (True, True)
    assert str(outcome).endswith("(difference 0.4): holds, without an interval")


@pytest.mark.parametrize(
    ("sides", "others", "factor"),
    [
        (("tree / 1.5", "chain"), ("tree", "2 * chain"), 4 / 3),
        (("tree", "2"), ("tree", "1"), 0.5),
        (("tree / chain", "1"), ("tree", "chain"), 1.0),
        (("tree", "chain"), ("chain", "tree"), None),
        (("tree + 1", "chain"), ("tree", "chain"), None),
        (("tree", "wide"), ("tree", "chain"), None),
    ],
)
def test_a_ratio_at_other_costs_is_proportional_to_that_of_the_same_figures(sides, others, factor):
    source = {arm: f"figure('tokens_per_step', '{arm}')" for arm in FIGURES}
    one, other = ([re.sub(r"[a-z]+", lambda word: source[word[0]], side) for side in both] for both in (sides, others))
    assert proportion(one, other) == (None if factor is None else pytest.approx(factor))


def test_an_inequality_is_named_by_its_sides():
    assert list(Clause("3 > 2*figure('alpha', 'x') > 1").inequalities) == [
        "3 over 2 * figure('alpha', 'x')",
        "2 * figure('alpha', 'x') over 1",
    ]


def test_a_term_names_a_metric_or_a_column_of_a_table_and_its_place():
    clause = Clause("figure('roles: with prefills', 'main', 'SEED, (4,2)') > 0.9 * figure('alpha', 'x') > 1")
    places = [Term("roles: with prefills", ("main", "SEED, (4,2)")), Term("alpha", ("x",))]
    assert list(clause.terms.values()) == places
    outcome = clause.test(lambda term: (3.0, 2.8, 3.2) if term.figure == "alpha" else (2.0,))
    assert outcome.text == "roles: with prefills of main, SEED, (4,2) 2 > 0.9 * alpha of x 3 [2.8, 3.2] > 1"


@pytest.mark.parametrize(
    ("texts", "main", "state"),
    [
        (["tree > 1"], 1, "agrees (1 of 1 hold)"),
        (["tree < 1"], 1, "disagrees (0 of 1 hold)"),
        (["wide > tree"], 1, "undecided (0 of 1 hold, 1 within noise)"),
        (["tree > 1", "chain > 1", "tree < 1"], 1, "undecided (2 of 3 hold)"),  # one of two others is not most
        (["tree > 1", "chain > 1", "wide > 1", "tree < 1"], 1, "agrees (3 of 4 hold)"),
        (["tree > 1", "chain > 1", "tree < 1"], 3, "disagrees (2 of 3 hold)"),  # the main clause fails
        (["wide > tree", "tree > 1", "chain > 1"], 1, "undecided (2 of 3 hold, 1 within noise)"),
        (["tree > 1", "wide > tree"], 1, "undecided (1 of 2 hold, 1 within noise)"),  # noise decides nothing
    ],
)
def test_the_main_clause_and_most_of_the_others_decide_a_verdict(texts, main, state):
    assert verdict(list(map(outcome_of, texts)), main) == state


@pytest.mark.parametrize("text", ["figure('alpha', 'tree')", "1 > 2", "figure('alpha') >", "a, b"])
def test_a_text_that_compares_no_figure_is_refused(text):
    with pytest.raises(ValueError, match="must compare a figure"):
        Clause(text)


@pytest.mark.parametrize(("effect", "state"), [(1.02, "too small"), (1.5, "undecided"), (None, "undecided")])
def test_a_sample_that_could_not_show_the_papers_effect_is_too_small(effect, state):
    outcome = outcome_of("wide > tree", (1.03, 0.9, 1.3))
    assert outcome.smallest_effect == pytest.approx((1.3 / 0.9) ** 0.5)
    assert verdict([outcome], 1, effect) == f"{state} (0 of 1 hold, 1 within noise)"
    decided = outcome_of("tree > chain", (1.5, 1.2, 1.8))
    assert verdict([decided], 1, 1.02) == "agrees (1 of 1 hold)"
