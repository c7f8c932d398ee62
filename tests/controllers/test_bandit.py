"""Bandits over draft lengths, budgets and builders, and over stopping rules."""

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of

from specexp.builders import Chain, Choice
from specexp.controllers import Bandit, ConfidenceThreshold, Fixed, Heuristic, RuleBandit, ThresholdTracker, bandit
from specexp.core.context import Context
from specexp.core.dialogue import DraftState, Plan
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape, root_tree
from specexp.drafters import DraftModel
from specexp.testing.controllers import ControllerContract, FrozenControllerContract
from specexp.testing.fakes import counting_model, hashed_model

pytestmark = pytest.mark.unit

TestUcb = contract_of(ControllerContract, lambda: Bandit("depths", [0, 2, 4]))
TestThompson = contract_of(ControllerContract, lambda: Bandit("nodes", [1, 3, None], policy="thompson"))
TestOverBuilders = contract_of(ControllerContract, lambda: Bandit("choices", [0, 1, None], state="cold"))
TestFrozen = contract_of(FrozenControllerContract, lambda: Bandit("depths", [3, 0], learn=False))


def plain_step(controller, context, tokens=1, seconds=1.0):
    new = (1,) * tokens
    context.append(new)
    controller.observe(Outcome(context, root_tree(1), torch.zeros(1, 2), (), new, seconds={"target": seconds}))


def play(controller, rewards, steps):
    """Play steps with tokens and seconds that are functions of the value; return the number of plays of each value."""
    counts = dict.fromkeys(controller.values, 0)
    context = Context([1])
    for number in range(steps):
        value = controller.plan(context).max_depth
        counts[value] += 1
        plain_step(controller, context, *rewards(value, number))
    return counts


@pytest.mark.parametrize(
    ("over", "values", "expected"),
    [
        ("depths", [2, 0, 5], [Plan(max_depth=2), Plan(max_depth=0), Plan(max_depth=5)]),
        ("nodes", [8, 0], [Plan(max_nodes=8), Plan(max_depth=0)]),
        ("choices", [1, None, 0], [Plan(choice=1), Plan(max_depth=0), Plan(choice=0)]),
    ],
)
def test_plans_are_lengths_budgets_or_builders_and_zero_is_off(over, values, expected):
    controller, context, plans = Bandit(over, values), Context([1]), []
    for _ in values:
        plans.append(controller.plan(context))
        plain_step(controller, context)
    assert plans == expected


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


def test_it_follows_a_change(monkeypatch):
    monkeypatch.setattr(bandit, "_WINDOW", 100)
    controller = Bandit("depths", [1, 2])
    play(controller, lambda value, number: (1, 1.0 if value == 1 else 2.0), 200)
    counts = play(controller, lambda value, number: (1, 1.0 if value == 2 else 3.0), 200)
    assert counts[2] > 120


def test_a_frozen_one_plays_the_best_it_learned():
    learner = Bandit("depths", [1, 2, 4])
    play(learner, lambda value, number: (value, 1.0), 30)
    frozen = Bandit("depths", [1, 2, 4], learn=False)
    frozen.load_state_dict(learner.state_dict())
    assert play(frozen, lambda value, number: (1, 1.0), 20) == {1: 0, 2: 0, 4: 20}


def test_nothing_is_learned_from_a_step_without_a_plan():
    """The last step of an output, for example, which has no room for a draft."""
    controller, context = Bandit("depths", [1]), Context([1])
    controller.plan(context)
    context.append([1])
    plain_step(controller, context)
    assert controller.goodput() == [None]


def test_more_arms_than_builders_are_refused():
    model = hashed_model(7)
    with pytest.raises(ValueError, match="Bandit chooses from 3 builders, but Choice holds 2"):
        Decoder(model, DraftModel(model), Choice([Chain(1), Chain(2)]), controller=Bandit("choices", [None, 2]))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (Bandit("depths", [1, 3]).state_dict(), r"must be of a Bandit over depths \[1, 2\], got depths \[1, 3\]"),
        ({**Bandit("depths", [1, 2]).state_dict(), "sums": [[1.0], [1.0]]}, "6 sums for each of 2 values"),
    ],
)
def test_a_state_of_other_values_is_refused(state, message):
    with pytest.raises(ValueError, match=message):
        Bandit("depths", [1, 2]).load_state_dict(state)


def rules():
    return [Fixed(max_depth=1), ConfidenceThreshold(0.3), ConfidenceThreshold(0.6, rule="token")]


TestByGoodput = contract_of(ControllerContract, lambda: RuleBandit(rules()))
TestByAcceptance = contract_of(
    ControllerContract, lambda: RuleBandit(rules(), reward="acceptance", policy="thompson", state="cold")
)
TestOverALearner = contract_of(ControllerContract, lambda: RuleBandit([Heuristic(), Fixed(3)], reward="acceptance"))
TestFrozenRules = contract_of(FrozenControllerContract, lambda: RuleBandit(rules(), reward="acceptance", learn=False))


def step(controller, context, accepted, drafted, seconds=1.0):
    """One step of a chain of ``drafted`` nodes; the plan it had."""
    plan = controller.plan(context)
    shape = TreeShape(np.arange(-1, drafted), np.array([-1] + [0] * drafted))
    new = (1,) * (accepted + 1)
    tree = TokenTree(shape, np.ones(drafted + 1, dtype=np.int64))
    context.append(new)
    path = tuple(range(1, accepted + 1))
    controller.observe(Outcome(context, tree, torch.zeros(drafted + 1, 2), path, new, seconds={"target": seconds}))
    return plan


@pytest.mark.parametrize("policy", ["ucb", "thompson"])
def test_the_rule_with_the_best_goodput_gets_most_steps(policy):
    """Depth 8 gives 5 tokens in 2 seconds, depth 2 gives 3 in 1 and depth 4 gives 4 in 1."""
    gives = {8: (4, 2.0), 2: (2, 1.0), 4: (3, 1.0)}
    controller = RuleBandit([Fixed(max_depth=depth) for depth in gives], policy=policy)
    context, played = Context([1]), []
    for number in range(300):
        generator = np.random.default_rng(number)
        accepted, seconds = gives[controller.plan(context).max_depth]
        played.append(step(controller, context, accepted, 8, seconds + generator.uniform(0, 0.2)).max_depth)
    assert played.count(4) > 240


def test_by_acceptance_neither_a_short_nor_a_wasteful_draft_wins():
    """Of 12 nodes at most: 1 of 1 is (1 + 1/12) / 2 = 0.54, 9 of 12 are 0.75, 9 of 36 are (1/4 + 3/4) / 2 = 0.5."""
    gives = {1: (1, 1), 12: (9, 12), 36: (9, 36)}
    controller = RuleBandit([Fixed(max_depth=depth) for depth in gives], reward="acceptance", exploration=0.0)
    context = Context([1])
    played = []
    for _ in range(10):
        planned = controller.plan(context).max_depth
        played.append(step(controller, context, *gives[planned]).max_depth)
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
    first, second = Heuristic(), Heuristic()
    controller = RuleBandit([first, second])
    step(controller, Context([1]), 4, 4)
    assert (first.length, second.length) == (7, 5)


def test_the_best_rule_is_named():
    controller = RuleBandit([Heuristic(), Fixed(max_depth=3)])
    assert controller.learned() == ""
    context = Context([1])
    step(controller, context, 0, 4)
    step(controller, context, 3, 4)
    assert controller.learned() == "the best of its controllers is Fixed (index 1)"


def test_a_state_of_other_rules_is_refused():
    state = RuleBandit([Fixed(), Fixed(2)]).state_dict()
    with pytest.raises(ValueError, match="the state of RuleBandit must have the entries"):
        RuleBandit(rules()).load_state_dict(state)
    with pytest.raises(ValueError, match="must be of a RuleBandit by acceptance, got goodput"):
        RuleBandit([Fixed(), Fixed(2)], reward="acceptance").load_state_dict(state)


def test_a_draft_model_catches_up_when_drafting_resumes():
    """The tokens of the plain steps are fed in the first pass of the next draft, which is as good as ever."""

    class OneInSeven(Fixed):
        def plan(self, context):
            self.steps = getattr(self, "steps", -1) + 1
            return Plan(max_depth=0 if self.steps % 7 else 2)

    decoder = Decoder(counting_model(9), DraftModel(counting_model(9)), Chain(2), controller=OneInSeven())
    steps = []
    decoder.generate([1], max_new_tokens=40, observers=[steps.append])
    drafts = [outcome for outcome in steps[1:] if outcome.draft_passes]
    # the last draft, six plain tokens and the root
    assert [outcome.pass_tokens for outcome in drafts[:2]] == [(8, 1)] * 2
    assert all(len(outcome.accepted) == 2 for outcome in drafts[:2])


def test_a_bandit_of_rules_declares_what_its_rules_declare():
    rules = RuleBandit([Bandit("choices", [0, 2]), Fixed()])
    assert rules.num_choices == 3
    assert RuleBandit([ThresholdTracker(), Fixed()]).plans_threshold
    assert RuleBandit([ConfidenceThreshold(), Fixed()]).needs_log_probs
    with pytest.raises(ValueError, match="the state must be of a Bandit"):
        RuleBandit([Bandit("choices", [0, 1]), Fixed()]).load_state_dict(rules.state_dict())
