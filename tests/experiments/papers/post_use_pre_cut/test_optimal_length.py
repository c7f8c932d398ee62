"""Which length would have been best: every figure here is computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.made_outcomes import outcome_of, strategy

from experiments.papers.post_use_pre_cut.optimal_length import OptimalLength
from specexp.bench.record import PromptRecord
from specexp.builders import Chain, Graft
from specexp.controllers import Fixed
from specexp.core.parts import Parts
from specexp.drafters import PhraseCache
from specexp.testing.analyses import AnalysisContract
from specexp.verifiers import Greedy

PLAIN = Parts(None, None, Greedy(), Fixed())


class TestOptimalLength(AnalysisContract):
    def make_analysis(self):
        return OptimalLength()


def step(accepted, drafted=8, bonus=True, passes=None):
    chain = outcome_of(
        [-1, *range(drafted)], list(range(1, accepted + 1)), bonus=bonus, tokens=[1] * (drafted + 1)
    )
    return replace(chain, pass_tokens=(1,) * (drafted if passes is None else passes))


def row_of(*outcomes, **arguments):
    analysis = OptimalLength(**arguments)
    analysis.begin({"engine": PLAIN, "a": strategy(Greedy())})
    for outcome in outcomes:
        analysis.observe("a", outcome)
    (row,) = analysis.report([]).tables["optimal_length"].records()
    return row


def test_in_hindsight_the_accepted_drafts_were_the_right_ones():
    """A pass costs a tenth of a step: 5 drafts bring 6 tokens for 1.5, which is more than 4 tokens for 1.3."""
    row = row_of(step(5), step(0), step(1), draft_cost=0.1)
    assert row["local mean"] == 2
    assert row["median"] == 1
    assert row["local is 0"] == pytest.approx(1 / 3)


def test_drafts_that_cost_more_than_they_bring_should_not_have_been_made():
    """2 tokens for 1 + 1.5; but 2 of 1 + 0.9 pay."""
    assert row_of(step(1), draft_cost=1.5)["local mean"] == 0
    assert row_of(step(1), draft_cost=0.9)["local mean"] == 1


def test_what_nothing_ended_may_be_longer():
    row = row_of(step(8), step(3, bonus=False), step(3), step(2), draft_cost=0.1)
    assert row["cut short"] == 0.5


def test_the_global_length_is_replayed():
    """Runs of 6 and 2 tokens. Length 1: 3 + 1 steps of 1.1; 2: 2 + 1 of 1.2; 5: 1 + 1 of 1.5; plain 8."""
    row = row_of(step(5), step(1), draft_cost=0.1)
    assert row["global"] == 5
    assert row["modelled speed at global"] == pytest.approx(8 / 3.0)
    assert row["modelled speed at local"] == pytest.approx(8 / (1.5 + 1.1))
    dear = row_of(step(5), step(1), draft_cost=0.3)  # 1: 4 * 1.3 = 5.2; 2: 3 * 1.6 = 4.8; 5: 2 * 2.5 = 5
    assert dear["global"] == 2
    assert dear["modelled speed at global"] == pytest.approx(8 / 4.8)


def test_where_drafting_never_pays_the_best_length_is_0():
    row = row_of(step(1), step(0), draft_cost=3.0)
    assert (row["global"], row["modelled speed at global"], row["modelled speed at local"]) == (0, 1.0, 1.0)


def test_passes_that_phrases_saved_are_not_paid():
    """8 drafts in 4 passes of half a step each: 6 tokens for 1 + 5 * 0.25."""
    row = row_of(step(5, passes=4), draft_cost=0.5)
    assert row["modelled speed at local"] == pytest.approx(6 / 2.25)


def test_grafts_are_no_drafts():
    """A chain of 2 with 2 grafted below it, 3 accepted in all: the whole draft was."""
    outcome = step(3, drafted=4, passes=2)
    tree = replace(outcome.tree, grafted=np.array([False, False, False, True, True]))
    row = row_of(replace(outcome, tree=tree), draft_cost=0.1)
    assert (row["drafted"], row["local mean"], row["cut short"]) == (2, 2, 1)


def record(arm, prompt, seconds, category="a", draft=0.0, clock="measured", passes=0):
    return PromptRecord(
        arm,
        f"p{prompt}",
        category,
        token_ids=(5,) * 12,
        turn_tokens=(12,),
        steps=12 if arm == "engine" else 4,
        draft_passes=passes,
        decode_seconds=seconds,
        decode_tokens=12,
        seconds={"target": seconds - draft, "draft": draft},
        clock=clock,
    )


def test_costs_are_the_runs_own():
    """A plain step of 0.1 s; the arm's of 0.3 s, of which 4 passes of 0.05 s."""
    analysis = OptimalLength()
    analysis.begin({"engine": PLAIN, "a": strategy(Greedy())})
    analysis.observe("a", step(3))
    records = [record("engine", 0, 1.2), record("a", 0, 1.2, draft=0.8, passes=16)]
    table = analysis.report(records).tables["optimal_length"]
    (row,) = table.records()
    assert row["draft pass"] == pytest.approx(0.5)
    assert row["speed at local"] == pytest.approx(4 / (1 + 3 * 0.5))
    assert table.notes[0] == "Costs: measured."


def grid():
    cached = Parts(PhraseCache(), Graft(Chain(4)), Greedy(), Fixed())
    arms = {f"plain, length={n}": cached._replace(builder=Chain(n)) for n in (4, 2, 8)}
    return {"engine": PLAIN, **arms, "cache, length=4": cached, "tree": cached._replace(builder=None)}


def test_arms_of_a_grid_are_a_line_with_its_best_length_marked():
    analysis = OptimalLength()
    analysis.begin(grid())
    clock = "modelled: 7B for 70B (published)"
    seconds = {"plain, length=2": 0.8, "plain, length=4": 0.5, "plain, length=8": 0.6, "cache, length=4": 0.4}
    records = [
        record(arm, prompt, value * (1 + prompt), category="aaabbbc"[prompt], clock=clock)
        for prompt in range(7)
        for arm, value in {"engine": 1.2, **seconds}.items()
    ]
    report = analysis.report(records)
    table = report.tables["optimal_length_sensitivity"]
    rows = table.records()
    assert [(row["arms"], row["category"], row["best length"]) for row in rows] == [
        (arms, category, 4) for category in ("all", "a", "b") for arms in ("plain", "cache")
    ]
    assert rows[0]["modelled speedup at it"] == "2.40x [2.40, 2.40]"
    assert [rows[0][f"at {length}"] for length in (2, 4, 8)] == pytest.approx([1.5, 2.4, 2.0])
    assert rows[1]["at 8"] is None
    figure = report.figures["optimal_length_sensitivity"]
    assert "modelled" in figure.get_suptitle()
    assert [axes.get_title() for axes in figure.axes] == [
        "all prompts",
        "plain, by category",
        "cache, by category",
    ]


def test_an_arm_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="was given arm 'b', but the arms are"):
        OptimalLength(arm="b").begin({"a": strategy(Greedy())})
