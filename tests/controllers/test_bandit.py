"""Bandits over draft lengths, budgets and builders, and over stopping rules."""

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of

from specexp.builders import Chain, Choice
from specexp.controllers import Bandit, ConfidenceThreshold, Fixed, Heuristic, Oracle, RuleBandit
from specexp.core.context import Context
from specexp.core.dialogue import DraftState, Plan
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape, root_tree
from specexp.drafters import DraftModel
from specexp.testing.controllers import ControllerContract, FrozenControllerContract
from specexp.testing.fakes import hashed_model

TestUcb = contract_of(ControllerContract, lambda: Bandit("depths", [0, 2, 4]))
TestThompson = contract_of(
    ControllerContract, lambda: Bandit("nodes", [1, 3, None], policy="thompson", window=50)
)
TestOverBuilders = contract_of(ControllerContract, lambda: Bandit("choices", [0, 1, None], state="cold"))
TestFrozen = contract_of(FrozenControllerContract, lambda: Bandit("depths", [3, 0], learn=False))


def play(controller, rewards, steps, position=0):
    """Steps whose tokens and seconds are functions of what was played; how often each value was."""
    counts = dict.fromkeys(controller.values, 0)
    context = Context([1])
    for number in range(steps):
        plan = controller.plan(context)
        value = plan.choice if controller.over == "choices" else plan.max_depth
        value = None if plan.max_depth == 0 and value not in counts else value
        counts[value] += 1
        tokens, seconds = rewards(value, number)
        context.append([1] * tokens)
        logits = torch.zeros(1, 2)
        controller.observe(
            Outcome(context, root_tree(1), logits, (), (1,) * tokens, seconds={"target": seconds})
        )
    return counts


def test_its_plans_are_lengths_budgets_or_builders_and_zero_is_off():
    def plans(over, values):
        controller = Bandit(over, values)
        seen, context = [], Context([1])
        for _ in values:
            seen.append(controller.plan(context))
            context.append([1])
            controller.observe(
                Outcome(context, root_tree(1), torch.zeros(1, 2), (), (1,), seconds={"target": 1.0})
            )
        return seen

    assert plans("depths", [2, 0, 5]) == [Plan(max_depth=2), Plan(max_depth=0), Plan(max_depth=5)]
    assert plans("nodes", [8, 0]) == [Plan(max_nodes=8), Plan(max_depth=0)]
    assert plans("choices", [1, None, 0]) == [Plan(choice=1), Plan(max_depth=0), Plan(choice=0)]


@pytest.mark.parametrize("policy", ["ucb", "thompson"])
def test_it_settles_on_the_best_ratio_of_sums_and_not_on_the_best_mean_of_ratios(policy):
    """Value 1 alternates 1 token in 0.1 s and 1 token in 9.9 s: a mean of ratios of 5.05, but 2 tokens in 10 s are 0.2
    a second. Value 2 always takes a second for a token."""

    def rewards(value, number):
        return 1, (0.1 if number % 2 else 9.9) if value == 1 else 1.0

    controller = Bandit("depths", [1, 2], policy=policy)
    counts = play(controller, rewards, 300)
    assert counts[2] > 250
    slow, fast = controller.goodput()
    assert fast == pytest.approx(1.0)
    assert slow < 0.7


def test_it_follows_a_change():
    """Within a window or two the value that was slow, and is now fast, is played."""
    controller = Bandit("depths", [1, 2], window=100)
    play(controller, lambda value, number: (1, 1.0 if value == 1 else 2.0), 200)
    counts = play(controller, lambda value, number: (1, 1.0 if value == 2 else 3.0), 200)
    assert counts[2] > 120


def test_a_frozen_one_plays_the_best_it_learned():
    learner = Bandit("depths", [1, 2, 4])
    play(learner, lambda value, number: (value, 1.0), 30)
    frozen = Bandit("depths", [1, 2, 4], learn=False)
    frozen.load_state_dict(learner.state_dict())
    assert play(frozen, lambda value, number: (1, 1.0), 20) == {1: 0, 2: 0, 4: 20}


def test_a_step_that_was_not_planned_teaches_nothing():
    """As the last one of an output, which has no room for a draft."""
    controller, context = Bandit("depths", [1]), Context([1])
    controller.plan(context)
    context.append([1, 1])
    controller.observe(Outcome(context, root_tree(1), torch.zeros(1, 2), (), (1,), seconds={"target": 1.0}))
    assert controller.goodput() == [None]


def test_more_arms_than_builders_are_refused():
    model = hashed_model(7)
    with pytest.raises(ValueError, match="Bandit chooses from 3 builders and Choice holds 2"):
        Decoder(
            model, DraftModel(model), Choice([Chain(1), Chain(2)]), controller=Bandit("choices", [None, 2])
        )


@pytest.mark.parametrize("values", [[], [2, 2], [0, None]])
def test_values_that_make_no_choice_are_refused(values):
    with pytest.raises(ValueError, match="different ones are needed, at least one"):
        Bandit("depths", values)


def test_a_state_of_other_values_is_refused():
    with pytest.raises(
        ValueError, match=r"the state is of a Bandit over depths \[1, 2\], but this one is over"
    ):
        Bandit("depths", [1, 3]).load_state_dict(Bandit("depths", [1, 2]).state_dict())
    state = Bandit("depths", [1, 2]).state_dict()
    with pytest.raises(ValueError, match="6 sums for each of 2 values"):
        Bandit("depths", [1, 2]).load_state_dict({**state, "sums": [[1.0], [1.0]]})


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
TestFrozenRules = contract_of(
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


def test_what_there_is_no_choice_among_is_refused():
    with pytest.raises(ValueError, match="RuleBandit was given 1 controllers; at least 2 are needed"):
        RuleBandit([Fixed()])
    with pytest.raises(ValueError, match="given an Oracle, which knows the best length already"):
        RuleBandit([Fixed(), Oracle()])
    with pytest.raises(ValueError, match="the state is of a RuleBandit over 2 controllers by goodput"):
        RuleBandit(rules()).load_state_dict(RuleBandit([Fixed(), Fixed(2)]).state_dict())
