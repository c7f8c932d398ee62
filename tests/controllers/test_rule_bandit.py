"""A bandit over stopping rules: whom it plays decides the step, and learns from it alone."""

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of

from specexp.builders import Chain
from specexp.controllers import ConfidenceThreshold, Fixed, Heuristic, Oracle, RuleBandit
from specexp.core.context import Context
from specexp.core.dialogue import DraftState, Plan
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape
from specexp.drafters import DraftModel
from specexp.testing.controllers import ControllerContract, FrozenControllerContract
from specexp.testing.fakes import hashed_model


def rules():
    return [Fixed(max_depth=1), ConfidenceThreshold(0.3), ConfidenceThreshold(0.6, rule="token")]


TestByGoodput = contract_of(ControllerContract, lambda: RuleBandit(rules()))
TestByAcceptance = contract_of(
    ControllerContract,
    lambda: RuleBandit(rules(), reward="acceptance", policy="thompson", window=50, state="cold"),
)
TestOverOneThatLearns = contract_of(
    ControllerContract, lambda: RuleBandit([Heuristic(), Fixed(max_depth=3)], reward="acceptance")
)
TestFrozen = contract_of(
    FrozenControllerContract, lambda: RuleBandit(rules(), reward="acceptance", learn=False)
)


def step(controller, context, accepted, drafted, seconds=1.0):
    """One step of a chain of ``drafted`` nodes; the plan it had."""
    plan = controller.plan(context)
    shape = TreeShape(np.arange(-1, drafted), np.array([-1] + [0] * drafted))
    new = (1,) * (accepted + 1)
    tree = TokenTree(shape, np.ones(drafted + 1, dtype=np.int64))
    context.append(new)
    path = tuple(range(1, accepted + 1))
    controller.observe(
        Outcome(context, tree, torch.zeros(drafted + 1, 2), path, new, seconds={"target": seconds})
    )
    return plan


@pytest.mark.parametrize("policy", ["ucb", "thompson"])
def test_the_rule_with_the_best_goodput_gets_most_steps(policy):
    """Depth 8 gives 5 tokens in 2 seconds, depth 2 gives 3 in 1 and depth 4 gives 4 in 1."""
    gives = {8: (4, 2.0), 2: (2, 1.0), 4: (3, 1.0)}
    controller = RuleBandit([Fixed(max_depth=depth) for depth in gives], policy=policy)
    context, played = Context([1]), []
    for number in range(300):
        generator = np.random.default_rng(number)
        accepted, seconds = gives[_peek(controller, context)]
        played.append(step(controller, context, accepted, 8, seconds + generator.uniform(0, 0.2)).max_depth)
    assert played.count(4) > 240


def _peek(controller, context):
    return controller.plan(context).max_depth


def test_by_acceptance_neither_a_short_nor_a_wasteful_draft_wins():
    """Of 12 nodes at most: 1 of 1 is (1 + 1/12) / 2 = 0.54, 9 of 12 are 0.75, 9 of 36 are (1/4 + 3/4) / 2 = 0.5."""
    gives = {1: (1, 1), 12: (9, 12), 36: (9, 36)}
    controller = RuleBandit([Fixed(max_depth=depth) for depth in gives], reward="acceptance", exploration=0.0)
    context = Context([1])
    played = [step(controller, context, *gives[_peek(controller, context)]).max_depth for _ in range(10)]
    assert played == [1, 12, 36] + [12] * 7


def test_the_rule_that_planned_a_step_ends_its_draft():
    controller = RuleBandit([ConfidenceThreshold(0.9), Fixed(max_depth=3)], exploration=0.0)
    context = Context([1])
    doubtful = DraftState(1, 1, (1,), log_prob=-1.0, last_log_prob=-1.0)
    assert controller.plan(context) == Plan()
    assert not controller.keep_drafting(context, doubtful)
    step(controller, context, 0, 1)
    assert controller.plan(context) == Plan(max_depth=3)
    assert controller.keep_drafting(context, doubtful)


def test_only_the_rule_that_planned_a_step_learns_from_it():
    first, second = Heuristic(initial=5, grow=2), Heuristic(initial=5, grow=2)
    controller = RuleBandit([first, second])
    step(controller, Context([1]), 4, 4)
    assert (first.length, second.length) == (7, 5)


def test_it_says_which_rule_was_best():
    controller = RuleBandit([Heuristic(), Fixed(max_depth=3)])
    assert controller.learned() == ""
    context = Context([1])
    step(controller, context, 0, 4)
    step(controller, context, 3, 4)
    assert controller.learned() == "Fixed, number 1 of its controllers, is the best"


def test_the_output_is_plain_decodings_while_rules_take_turns():
    model = hashed_model(24)
    expected = Decoder(model).generate([1, 2], max_new_tokens=40).token_ids
    decoder = Decoder(model, DraftModel(hashed_model(24)), Chain(6), controller=RuleBandit(rules()))
    assert decoder.generate([1, 2], max_new_tokens=40).token_ids == expected


def test_what_there_is_no_choice_among_is_refused():
    with pytest.raises(ValueError, match="RuleBandit was given 1 controllers; at least 2 are needed"):
        RuleBandit([Fixed()])
    with pytest.raises(ValueError, match="given an Oracle, which knows the best length already"):
        RuleBandit([Fixed(), Oracle()])
    with pytest.raises(ValueError, match="the state is of a RuleBandit over 2 controllers by goodput"):
        RuleBandit(rules()).load_state_dict(RuleBandit([Fixed(), Fixed(2)]).state_dict())
