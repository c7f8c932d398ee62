"""Any controller, and plain decoding where speculation does not pay."""

import pytest
import torch
from helpers.contracts import contract_of

from specexp.builders import Chain
from specexp.controllers import (
    Bandit,
    ConfidenceThreshold,
    Fixed,
    Heuristic,
    SwitchOff,
    ThresholdTracker,
)
from specexp.core.context import Context
from specexp.core.dialogue import Plan
from specexp.core.latency import LatencyProfile
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape, root_tree
from specexp.drafters import DraftModel
from specexp.testing.controllers import ControllerContract, FrozenControllerContract
from specexp.testing.fakes import counting_model

pytestmark = pytest.mark.unit

OFF = Plan(max_depth=0)


TestSwitchOff = contract_of(
    ControllerContract, lambda: SwitchOff(Heuristic(), window=4, probe_every=5, margin=0.3)
)
TestMeasuredAndCold = contract_of(
    ControllerContract, lambda: SwitchOff(ConfidenceThreshold(), window=2, state="cold")
)
TestFrozen = contract_of(
    FrozenControllerContract, lambda: SwitchOff(Bandit("depths", [2, 4], learn=False), learn=False)
)


def play(controller, cost, tokens, steps):
    """Whether each of some steps drafted; a drafting one gives ``tokens`` in ``cost`` seconds, a plain one 1 in 1."""
    context, drafts = Context([1]), []
    one = TokenTree(TreeShape([-1, 0], [-1, 0]), root_tree(1).tokens.repeat(2))
    for _ in range(steps):
        drafting = controller.plan(context) != OFF
        drafts.append(drafting)
        tree, new = (one, (1,) * tokens) if drafting else (root_tree(1), (1,))
        context.append(new)
        seconds = {"target": cost if drafting else 1.0}
        controller.observe(
            Outcome(context, tree, torch.zeros(tree.num_nodes + 1, 2), (), new, seconds=seconds)
        )
    return drafts


def test_speculation_that_pays_stays_on_with_rare_plain_steps():
    drafts = play(SwitchOff(Fixed(), window=8, probe_every=10), cost=1.5, tokens=2, steps=108)
    assert not any(drafts[4:8])  # what a plain step takes is measured first
    assert [number for number, drafted in enumerate(drafts) if not drafted][4:] == list(range(18, 108, 11))


def test_speculation_that_does_not_pay_goes_off_with_rare_drafts():
    drafts = play(SwitchOff(Fixed(), window=8, probe_every=10), cost=2.5, tokens=2, steps=108)
    assert all(drafts[:4])
    assert [number for number, drafted in enumerate(drafts) if drafted][4:] == list(range(14, 108, 11))


@pytest.mark.parametrize(("margin", "share"), [(0.0, 1.0), (0.2, 1.0), (0.4, 0.0)])
def test_the_margin_is_the_required_gain(margin, share):
    """Two tokens in 1.5 s are 1.33 times plain decoding."""
    drafts = play(SwitchOff(Fixed(), window=8, probe_every=500, margin=margin), cost=1.5, tokens=2, steps=60)
    assert sum(drafts[10:]) / 50 == share


def test_frozen_it_probes_nothing():
    learner = SwitchOff(Fixed(), window=8)
    play(learner, cost=2.5, tokens=2, steps=30)
    frozen = SwitchOff(Fixed(), window=8, learn=False)
    assert all(play(frozen, cost=2.5, tokens=2, steps=200))  # it has learned nothing
    frozen.load_state_dict(learner.state_dict())
    assert not any(play(frozen, cost=0.1, tokens=2, steps=200))


def test_a_steps_own_costs_come_from_the_profile():
    """A draft pass costs as much as a step, so one draft that is always right breaks even, and three lose half."""
    for ms, drafting in ((4.0, True), (14.0, False)):
        controller = SwitchOff(Fixed(max_depth=3), window=4, probe_every=500)
        controller.use_latency(LatencyProfile("made up", {1: 10.0}, {1: ms}))
        decoder = Decoder(counting_model(9), DraftModel(counting_model(9)), Chain(3), controller=controller)
        seen = []
        decoder.generate([1], max_new_tokens=60, observers=[seen.append])
        drafted = [outcome.draft_passes > 0 for outcome in seen[2:-1]]
        assert drafted == [drafting] * len(drafted)


def test_a_draft_model_catches_up_when_drafting_resumes():
    """The tokens of the plain steps are fed in the first pass of the probe, and its draft is as good as ever."""
    controller = SwitchOff(Fixed(max_depth=2), window=2, probe_every=6, margin=9.0)
    controller.use_latency(LatencyProfile("made up", {1: 10.0}, {1: 1.0}))
    decoder = Decoder(counting_model(9), DraftModel(counting_model(9)), Chain(2), controller=controller)
    seen = []
    decoder.generate([1], max_new_tokens=40, observers=[seen.append])
    probes = [outcome for outcome in seen[1:] if outcome.draft_passes]
    # the last draft, six plain tokens and the root
    assert [outcome.pass_tokens for outcome in probes[:2]] == [(8, 1)] * 2
    assert all(len(outcome.accepted) == 2 for outcome in probes[:2])


def test_it_declares_what_the_inner_controller_declares():
    wrapped = SwitchOff(Bandit("choices", [0, 2]))
    assert wrapped.num_choices == 3
    assert SwitchOff(ThresholdTracker()).plans_threshold
    assert SwitchOff(ConfidenceThreshold()).needs_log_probs
    with pytest.raises(ValueError, match="the state must be of a Bandit"):
        SwitchOff(Bandit("choices", [0, 1])).load_state_dict(wrapped.state_dict())
