"""Which draft length is, and would have been, best: every figure is computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import made_records
from helpers.made_records import outcome_of, strategy

from experiments.papers.post_use_pre_cut.draft_length import (
    AblationGrid,
    OptimalLength,
    Step,
    StepCosts,
    global_optimum,
    intervals_of,
    local_optima,
    speed_of,
)
from specexp.controllers import Fixed
from specexp.core.parts import Parts
from specexp.verifiers import Greedy

pytestmark = pytest.mark.unit

PLAIN = Parts(None, None, Greedy(), Fixed())


def costs(draft_pass):
    return StepCosts(1.0, draft_pass, "measured")


def step(accepted, drafted=8, ended=False, passes=None):
    return Step(accepted, drafted, drafted if passes is None else passes, ended)


def test_in_hindsight_the_accepted_drafts_were_the_right_ones():
    """A pass costs a tenth of a step: 5 drafts bring 6 tokens for 1.5, which is more than 4 tokens for 1.3."""
    assert local_optima([step(5), step(0), step(1)], costs(0.1)).tolist() == [5, 0, 1]


def test_drafts_that_cost_more_than_they_bring_should_not_have_been_made():
    """2 tokens for 1 + 1.5; but 2 of 1 + 0.9 pay."""
    assert local_optima([step(1)], costs(1.5)).tolist() == [0]
    assert local_optima([step(1)], costs(0.9)).tolist() == [1]


def test_the_global_length_is_replayed():
    """Runs of 6 and 2 tokens. Length 1: 3 + 1 steps of 1.1; 2: 2 + 1 of 1.2; 5: 1 + 1 of 1.5; plain 8."""
    steps = [step(5), step(1)]
    assert global_optimum(steps, costs(0.1)) == (5, pytest.approx(8 / 3.0))
    assert speed_of(steps, costs(0.1), local_optima(steps, costs(0.1))) == pytest.approx(8 / (1.5 + 1.1))
    # 1: 4 * 1.3 = 5.2; 5: 2 * 2.5 = 5
    assert global_optimum(steps, costs(0.3)) == (2, pytest.approx(8 / 4.8))


def test_intervals_are_over_prompts_and_have_the_value_on_all_of_them():
    """Without a prompt that differs there is nothing to draw; with one, the ends lie around numpy's quantile."""
    steps = [step(number % 6) for number in range(25)]
    alone = intervals_of(steps, costs(0.1))
    best, local = global_optimum(steps, costs(0.1))[1], local_optima(steps, costs(0.1))
    assert [*alone.at_global] == pytest.approx([best] * 3)
    assert alone.high_length == [np.quantile(local, 0.9, method="nearest")] * 3
    prompts = [one._replace(sequence=f"{number % 5}#0", accepted=number % 5) for number, one in enumerate(steps)]
    for value, low, high in intervals_of(prompts, costs(0.1)):
        assert low <= value <= high
    low_speed, high_speed = intervals_of(prompts, costs(0.1)).at_local[1:]
    assert low_speed < high_speed


def seen(accepted, drafted, grafts=()):
    chain = outcome_of([-1, *range(drafted)], list(range(1, accepted + 1)), tokens=[1] * (drafted + 1))
    tree = replace(chain.tree, grafted=np.isin(np.arange(drafted + 1), grafts))
    return replace(chain, tree=tree, pass_tokens=(1,) * (drafted - len(grafts)))


def row_of(outcome, *records):
    analysis = OptimalLength()
    analysis.begin({"plain": PLAIN, "a": strategy(Greedy())})
    analysis.observe("a", outcome)
    table = analysis.report(records).tables["optimal_length"]
    assert table.notes[0] == "Costs: measured."
    return table.records()[0]


def record(arm, prompt, seconds, draft=0.0, passes=0):
    given = {"token_ids": (5,) * 12, "steps": 12 if arm == "plain" else 4, "draft_passes": passes}
    return made_records.record(arm, prompt, seconds, seconds={"target": seconds - draft, "draft": draft}, **given)


RECORDS = [record("plain", 0, 1.2), record("a", 0, 1.2, draft=0.8, passes=16)]


def test_costs_are_the_runs_own():
    """A plain step of 0.1 s; the arm's of 0.3 s, of which 4 passes of 0.05 s."""
    row = row_of(seen(3, 8), *RECORDS)
    assert row["draft pass"] == pytest.approx(0.5)
    assert row["speed at local"] == pytest.approx(4 / (1 + 3 * 0.5))


def test_grafts_are_no_drafts():
    """A chain of 2 with 2 grafted below it, 3 accepted in all: the whole draft was."""
    row = row_of(seen(3, 4, grafts=[3, 4]), *RECORDS)
    assert (row["drafted"], row["cut short"]) == (2, 1)


# --- Levels by draft length -----------------------------------------------------------------------------------------

SPEEDUPS = {
    "fixed": {3: 2.0, 6: 1.5, 12: 1.0},
    "+ reuse": {3: 2.0, 6: 2.5, 12: 2.0},
}


def test_a_row_a_level_and_a_column_a_length():
    seconds = {"plain": 1.0, "lookup": 0.8}
    for level, row in SPEEDUPS.items():
        seconds |= {f"{level}, length={length}": 1 / speedup for length, speedup in row.items()}
    analysis = AblationGrid()
    analysis.begin(dict.fromkeys(seconds, strategy(Greedy())) | {"plain": PLAIN})
    records = [record(arm, prompt, taken) for prompt in range(2) for arm, taken in seconds.items()]
    rows = analysis.report(records).tables["ablation_grid"].records()
    assert [row["level"] for row in rows] == ["fixed", "+ reuse", "lookup"]
    assert rows[0]["length=3"] == "2.00x (3.00)"
    assert rows[1]["length=6"] == "2.50x (3.00)"
    assert (rows[2]["any length"], rows[2]["length=3"]) == ("1.25x (3.00)", None)
    assert rows[0]["slowest / fastest"] == pytest.approx(0.5)
    assert rows[1]["slowest / fastest"] == pytest.approx(0.8)


def test_arms_that_do_not_go_on_one_grid_are_refused():
    plain = strategy(Greedy())
    with pytest.raises(ValueError, match="all grids must sweep the same argument, got \\['length', 'nodes'\\]"):
        AblationGrid().begin(dict.fromkeys(["plain", "a, length=3", "b, nodes=8"], plain))
