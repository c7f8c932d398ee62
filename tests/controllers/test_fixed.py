"""Fixed limits, and draft lengths that grow after success and shrink after failure."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.contracts import contract_of
from helpers.made_records import outcome_of

from specexp.builders import Chain
from specexp.controllers import Fixed, Heuristic
from specexp.core.context import Context
from specexp.core.loop import Decoder
from specexp.testing.controllers import ControllerContract, FrozenControllerContract
from specexp.testing.fakes import FakeDrafter, counting_model

pytestmark = pytest.mark.unit

TestFixed = contract_of(FrozenControllerContract, lambda: Fixed())
TestFixedWithLimits = contract_of(FrozenControllerContract, lambda: Fixed(max_depth=2, max_nodes=3))


@pytest.mark.parametrize(
    ("limits", "drafted"), [({}, 6), ({"max_depth": 2}, 2), ({"max_nodes": 3}, 3), ({"max_depth": 0}, 0)]
)
def test_its_limits_hold_at_every_step(limits, drafted):
    seen, drafter = [], FakeDrafter(lambda tokens: [(tokens[-1] + 1) % 11])
    decoder = Decoder(counting_model(11), drafter, Chain(6), controller=Fixed(**limits))
    decoder.generate([0], max_new_tokens=21, observers=[lambda outcome: seen.append(outcome.tree.num_nodes)])
    assert max(seen) == seen[0] == drafted


TestHeuristic = contract_of(ControllerContract, lambda: Heuristic())
TestTransientHeuristic = contract_of(ControllerContract, lambda: Heuristic(initial=3, state="cold"))


def step(controller, depth, accepted, ended=False, grafted=0):
    """Observe a chain; the next depth."""
    outcome = outcome_of([-1, *range(depth)], range(1, accepted + 1), bonus=not ended)
    if grafted:
        outcome.tree = replace(outcome.tree, grafted=np.arange(depth + 1) > depth - grafted)
    controller.observe(outcome)
    return controller.plan(Context([1])).max_depth


def test_it_starts_at_five_grows_by_two_and_shrinks_by_one():
    controller = Heuristic()
    assert controller.plan(Context([1])).max_depth == 5
    assert [step(controller, 5, accepted) for accepted in (5, 5, 4, 0)] == [7, 9, 8, 7]


def test_it_stays_between_one_and_its_greatest_length():
    controller = Heuristic(initial=2, max_depth=5)
    assert [step(controller, 2, 0) for _ in range(3)] == [1, 1, 1]
    assert [step(controller, 1, 1) for _ in range(3)] == [3, 5, 5]


def test_a_step_without_a_draft_or_ended_inside_it_teaches_nothing():
    controller = Heuristic()
    assert step(controller, 0, 0) == 5
    assert step(controller, 4, 2, ended=True) == 5
    assert step(controller, 4, 4, ended=True) == 7


def test_grafted_phrases_do_not_count():
    """Two drafted nodes, both accepted, and two grafted below them, of which none was."""
    assert step(Heuristic(), 4, 2, grafted=2) == 7
    assert step(Heuristic(), 4, 1, grafted=2) == 4


def test_a_cold_controller_resets_at_every_prompt_and_a_carried_one_does_not():
    for state, expected in (("cold", 5), ("carry", 7)):
        controller = Heuristic(state=state)
        step(controller, 3, 3)
        controller.begin(Context([1]), None)
        assert controller.plan(Context([1])).max_depth == expected


def test_it_cannot_start_above_its_greatest_length():
    with pytest.raises(ValueError, match="initial must be at most max_depth 3, got 5"):
        Heuristic(max_depth=3)
