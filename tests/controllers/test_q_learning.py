"""Q-learning by hand, its optimum by simulation, and that an interruption changes nothing."""

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of
from helpers.examples import examples
from helpers.published import published_arm
from hypothesis import given, strategies as st

from specexp.artifacts.kinds.learned import QTableArtifact
from specexp.config.artifacts import save_artifact
from specexp.controllers import QLearning
from specexp.controllers.q_table import CONTINUE, STOP
from specexp.core.context import Context
from specexp.core.dialogue import DraftState
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape
from specexp.testing.controllers import ControllerContract

PAPER = LatencyProfile("paper", {1: 152.0, 64: 155.0}, {1: 21.0, 64: 21.4}, step_ms=2.2)


TestQLearning = contract_of(ControllerContract, lambda: QLearning(draft_cost=0.14))
TestQLearningAsPublished = contract_of(
    ControllerContract,
    lambda: QLearning(**{**published_arm("ours_published").controller.init_args, "draft_cost": 0.14}),
)
TestQLearningThatMeasures = contract_of(ControllerContract, lambda: QLearning(calibrate=4))


TestQLearningWithSignals = contract_of(
    ControllerContract, lambda: QLearning(["acceptance", "cache_hits", "cost_slope"], reward="goodput", draft_cost=0.14)
)


def payloads_of_state(state):
    """Return the payloads of an artifact without recorded parts."""
    parts = {"controller": {"class_path": "QLearning"}}
    payloads = QTableArtifact.payloads_of(parts, {"learned": {"controller": state}})
    return {file: content for file, content in payloads.items() if file != "parts.json"}


def chain(tokens, log_prob=-0.1, grafted=0):
    size = len(tokens)
    graft = np.arange(size) >= size - grafted if grafted else None
    shape = TreeShape(range(-1, size - 1), [-1] + [0] * (size - 1))
    log_probs = np.full(size, log_prob, dtype=np.float32)
    if grafted:
        log_probs[-grafted:] = np.nan
    return TokenTree(shape, np.array(tokens), log_probs, grafted=graft)


def step(controller, context, length, accepted, confidence=0.9, seconds=None):
    """Draft a chain as the decoder does, ``accepted`` of it right; return its length."""
    plan = controller.plan(context)
    depth = 0
    if plan.max_depth != 0:
        while depth < length and controller.keep_drafting(
            context, DraftState(depth, depth, (1,) * depth, depth * np.log(confidence), np.log(confidence))
        ):
            depth += 1
    answer(controller, context, depth, min(accepted, depth), confidence, seconds)
    return depth


def answer(controller, context, depth, accepted, confidence=0.9, seconds=None):
    tree = chain([context.root, *range(3, 3 + depth)], np.log(confidence))
    logits = torch.zeros(depth + 1, 40)
    for row in range(depth + 1):
        logits[row, 3 + row if row != accepted else 1] = 1.0
    new = (*range(3, 3 + accepted), 1)
    context.append(new)
    context.steps += 1
    rows = tuple(range(1, accepted + 1))
    controller.observe(Outcome(context, tree, logits, rows, new, (1,) * depth, seconds or {}))


def test_virtual_trials_by_hand():
    """Two passes, one draft accepted, c = 0.5: stopping after one pass would have given 2 / 1.5, after two 2 / 2."""
    controller = QLearning(draft_cost=0.5, alpha=0.5, gamma=1.0, epsilon=0.0, cost_bins=[2], confidence_bins=[0.5])
    context = Context([1, 2])
    assert step(controller, context, 2, 1, confidence=0.6) == 2
    one, two = (controller.table.row(0, *state) for state in ((1, 0.6), (2, 0.36)))
    values = controller.table.values
    assert values[two][STOP] == pytest.approx(2 / 2 - 1)
    assert values[one] == pytest.approx([2 / 2 - 1, 2 / 1.5 - 1])  # the builder ends: only STOP is left
    assert values[0] == pytest.approx([2 / 1.5 - 1, 0.0])
    assert controller.table.visits[0] == [1, 1]
    answer(controller, context, 2, 2)  # without a plan nothing but its end is known
    assert values[controller.table.row(0, 2, 0.81)][STOP] == pytest.approx(3 / 2 - 1)


def test_as_published_the_first_decision_comes_after_the_first_draft():
    """With the paper's unit every reward is negative, so plain decoding, which is 0, would win. Algorithm 1 has no such
    action: it always makes the first draft.
    """
    lengths = {}
    for first in ("before", "after"):
        controller = QLearning(
            draft_cost=0.14, reward="useful", unit="draft", backup="bootstrap", first_decision=first,
            virtual_trials="warm-up", warm_up=50, epsilon=0.5, epsilon_min=0.0, epsilon_decay=0.5,
        )  # fmt: skip
        context = Context([1, 2])
        found = [step(controller, context, 8, 3, confidence=0.8) for _ in range(80)]
        lengths[first] = found[-10:]
        assert first == "before" or min(found) >= 1
    assert max(lengths["before"]) == 0
    assert min(lengths["after"]) >= 1


def test_as_published_the_table_after_one_warm_up_turn_by_hand():
    """Three drafts, two of them right; a plain step costs two draft passes, so stopping after 1, 2 and 3 passes gives
    1 / 3 - 1, 2 / 4 - 1 and 2 / 5 - 1. Every value moves a tenth of the way, from 0 (STOP) or 0.01 (CONTINUE).
    """
    published = published_arm("ours_published").controller.init_args
    small = {"draft_cost": 0.5, "cost_bins": [2, 3], "confidence_bins": [0.5], "epsilon": 0}
    controller = QLearning(**{**published, **small})
    assert step(controller, Context([1, 2]), 3, 2, confidence=0.9) == 3
    start, one, two, three = (
        controller.table.values[0],
        *(controller.table.values[controller.table.row(0, passes, 0.9**passes)] for passes in (1, 2, 3)),
    )
    assert three == pytest.approx([0.01, 0.1 * (2 / 5 - 1)])
    assert two[STOP] == pytest.approx(0.1 * (2 / 4 - 1))
    assert one[STOP] == pytest.approx(0.1 * (1 / 3 - 1))
    # the builder ended at three: nothing but STOP is left there (eq. 5 with r = 0)
    assert two[CONTINUE] == pytest.approx(0.01 + 0.1 * (0.99 * -0.06 - 0.01))  # 0.00306
    assert one[CONTINUE] == pytest.approx(0.01 + 0.1 * (0.99 * 0.00306 - 0.01))  # max(0.00306, -0.05)
    assert start == pytest.approx([0.01 + 0.1 * (0.99 * 0.00930294 - 0.01), 0.0])


def test_as_published_a_reuse_goes_on_without_a_decision():
    """Algorithm 1, lines 8 to 10. The table stops everywhere; the second pass gave three tokens."""
    for first, goes_on in (("before", False), ("after", True)):
        controller = QLearning(draft_cost=0.14, first_decision=first, epsilon=0.0)
        controller.table.values[1:] = [[-1.0, 0.0] for _ in controller.table.values[1:]]
        for depths, expected in (((1,), False), ((4,), goes_on), ((3, 6), goes_on), ((3, 4), False)):
            context = Context([1, 2])
            controller.plan(context)
            for passes, depth in enumerate(depths, start=1):
                found = controller.keep_drafting(context, DraftState(depth, depth, (1,) * passes, -0.1))
            assert found is expected


def test_as_published_a_share_of_the_decisions_is_random():
    """Half of the decisions are random, and half of those stop: a draft of at most 8 ends after (1 - 0.75^8) / 0.25."""
    controller = QLearning(draft_cost=0.14, exploration="decision", first_decision="after", epsilon=0.5, learn=True)
    controller.table.values = [[1.0, 0.0] for _ in controller.table.values]
    lengths = []
    for seed in range(1500):
        context, depth = Context([1, 2], seed=seed), 1
        controller.plan(context)
        while depth < 8 and controller.keep_drafting(context, DraftState(depth, depth, (1,) * depth, -0.1)):
            depth += 1
        lengths.append(depth)
    assert np.mean(lengths) == pytest.approx((1 - 0.75**8) / 0.25, abs=0.2)


def test_the_reward_of_algorithm_1_is_the_accepted_share_of_the_draft():
    controller = QLearning(draft_cost=0.14, reward="utilisation")
    assert controller.rewarded(3, 0, 4, (1, 1, 1, 1)) == 3 / 4 - 1
    assert controller.rewarded(0, 0, 0, ()) == 0.0


def test_a_saved_table_keeps_the_costs_it_was_learned_with():
    """Loaded without a profile it neither measures nor forgets them; a profile of the new run has priority."""
    learned, deployed, elsewhere = QLearning(), QLearning(), QLearning()
    learned.use_latency(PAPER)
    elsewhere.use_latency(LatencyProfile("other", {1: 10.0}, {1: 5.0}))
    for controller in (deployed, elsewhere):
        controller.load_state_dict(learned.state_dict())
    assert deployed.costs.known
    assert deployed.costs.step(5, (1, 1)) == learned.costs.step(5, (1, 1))
    assert elsewhere.costs.step(5, (1, 1)) == 2.0


@pytest.mark.parametrize(("backup", "worth"), [("return", 0.0), ("bootstrap", 0.5 * 0.01 + 0.5 * 0.25)])
def test_continue_backs_up_this_episodes_return_or_as_published_the_best_value(backup, worth):
    """Others earned 3 / 2 in the last state; this episode, one of two accepted, earns 2 / 2 and halves that gain. The
    first visit of CONTINUE is averaged, or moves half of the way from 0.01 to the best value.
    """
    controller = QLearning(
        draft_cost=0.5, alpha=0.5, gamma=1.0, epsilon=0.0, cost_bins=[2], confidence_bins=[0.5], backup=backup
    )
    context = Context([1, 2])
    row = controller.table.row(0, 2, 0.36)
    controller.table.values[row] = [-1.0, 3 / 2 - 1]  # known well: others that came here were right
    controller.table.visits[row] = [1, 10**9]
    step(controller, context, 2, 1, confidence=0.6)
    assert controller.table.values[controller.table.row(0, 1, 0.6)][CONTINUE] == pytest.approx(worth)


def test_useful_in_draft_passes_is_as_published():
    """Three drafts, the second wrong and the third right again: 2 useful tokens for 3 passes and a target pass of 2."""
    controller = QLearning(draft_cost=0.5, reward="useful", unit="draft", alpha=1.0, epsilon=0.0)
    context = Context([1, 2])
    controller.plan(context)
    answer(controller, context, 3, 1)
    row = controller.table.row(0, 3, 0.9**3)
    assert controller.table.values[row][STOP] == pytest.approx(2 / (3 + 2) - 1)


def test_speculation_is_switched_off_where_nothing_is_accepted():
    """STOP at the start is worth exactly 0, so a draft that only costs is not started; it is where it pays."""
    for accepted, ends in ((0, 0), (6, 6)):
        controller = QLearning(draft_cost=0.3, warm_up=60, epsilon_min=0.0, epsilon_decay=0.5)
        context = Context([1, 2])
        drafted = [step(controller, context, 6, accepted) for _ in range(120)]
        assert drafted[-1] == ends
        assert controller.table.values[0][STOP] == 0.0
        plan = controller.plan(context)
        assert plan.max_depth == (0 if ends == 0 else None)
        assert controller.keep_drafting(context, DraftState(0, 0)) == (ends > 0)


def test_grafts_count_for_every_trial_with_a_draft():
    """Two grafted tokens accepted behind the draft: their mean is part of what stopping gives, and of what it costs."""
    controller = QLearning(epsilon=0.0, alpha=1.0)
    controller.use_latency(LatencyProfile("steep", {1: 100.0, 11: 200.0}, {1: 10.0}))
    context = Context([1, 2])
    for _ in range(400):
        controller.plan(context)
        tree = chain([2, 3, 4, 5], grafted=2)
        context.append((3, 4, 5, 1))
        controller.observe(Outcome(context, tree, torch.zeros(4, 9), (1, 2, 3), (3, 4, 5, 1), (1,)))
    row = controller.table.row(0, 1, 0.9)
    assert controller.table.values[row][STOP] == pytest.approx((1 + 2 + 1) / (1.3 + 0.1) - 1, rel=1e-3)


@examples(3)
@given(rate=st.sampled_from([0.5, 0.7, 0.85]), cost=st.sampled_from([0.05, 0.14]), seed=st.integers(0, 99))
def test_it_learns_the_best_length(rate, cost, seed):
    """Where every draft is accepted with one probability, the greedy length ends near the best E[tokens] / cost."""
    chance = np.random.default_rng(seed)
    controller = QLearning(
        draft_cost=cost, alpha=0.01, gamma=1.0, warm_up=500, epsilon=0.3, epsilon_min=0.0, epsilon_decay=0.5,
        cost_bins=list(range(1, 9)), confidence_bins=[0.5],
    )  # fmt: skip
    context = Context([1, 2])
    for _ in range(510):
        runs = chance.random(8) < rate
        length = step(controller, context, 8, int(runs.argmin()) if not runs.all() else 8, confidence=1.0)
    worth = [(1 + sum(rate**place for place in range(1, k + 1))) / (1 + k * cost) for k in range(9)]
    assert worth[length] >= 0.9 * max(worth)


def test_costs_are_in_plain_steps_with_their_token():
    controller = QLearning()
    profile = LatencyProfile("x", {1: 99.0, 5: 119.0}, {1: 10.0}, step_ms=4.0, node_ms=1.0, token_ms=1.0)
    controller.use_latency(profile)
    assert controller.costs.step(1, ()) == 1.0
    milliseconds = 119 + 2 * 10 + 4 + 4 * 1 + 3 * 1
    assert controller.costs.step(5, (1, 1), 3) == pytest.approx(milliseconds / 100)


def test_costs_are_measured_once_and_fixed():
    """Full drafts and plain steps alternate; then neither seconds nor a state change the costs."""
    controller = QLearning(calibrate=6, epsilon=0.0)
    context = Context([1, 2])

    def seconds(depth):
        return {"target": 0.1 + 0.001 * depth, "draft": 0.02 * depth, "build": 0.003 * (depth > 0)}

    lengths = []
    for _ in range(6):
        depth = 0 if controller.plan(context).max_depth == 0 else 4
        lengths.append(depth)
        answer(controller, context, depth, 1 if depth else 0, seconds=seconds(depth))
    assert lengths == [4, 0, 4, 0, 4, 0]
    cost = (104 + 3 + 4 * 20) / 100
    assert controller.costs.step(5, (1, 1, 1, 1)) == pytest.approx(cost)
    assert controller.costs.profile.source == "measured"
    assert not controller.costs.profile.modelled
    answer(controller, context, 4, 1, seconds={"target": 9.0, "draft": 9.0})
    assert controller.costs.step(5, (1, 1, 1, 1)) == pytest.approx(cost)
    other = QLearning(calibrate=6)
    other.load_state_dict(controller.state_dict())
    assert other.costs.step(5, (1, 1, 1, 1)) == pytest.approx(cost)


@pytest.mark.parametrize("at", [3, 90])
def test_saved_loaded_and_continued_is_never_interrupted(at):
    def decisions(interrupted):
        chance = np.random.default_rng(5)
        controller, context, taken = make(), Context([1, 2], seed=4), []
        for number in range(120):
            if interrupted and number == at:
                state = controller.state_dict()
                controller = make()
                controller.load_state_dict(state)
            taken.append(step(controller, context, 8, int(chance.integers(9)), confidence=0.8))
        return taken, controller.state_dict()["q"]

    def make():
        return QLearning(signals=["acceptance"], draft_cost=0.14, warm_up=40)

    whole, parts = decisions(False), decisions(True)
    assert whole[0] == parts[0]
    assert torch.equal(whole[1], parts[1])
    assert len(set(whole[0])) > 2


def saved(folder, **arguments):
    controller = QLearning(draft_cost=0.14, **arguments)
    context = Context([1, 2])
    for _ in range(50):
        step(controller, context, 6, 3)
    return save_artifact(folder, "q-table", payloads_of_state(controller.state_dict())), controller


def test_an_artifact_gives_the_frozen_controller(tmp_path):
    artifact, learned = saved(tmp_path / "q", signals=["cache_hits"])
    frozen = artifact.controller
    assert (frozen.table.values, frozen.steps) == (learned.table.values, learned.steps)
    assert frozen.exploring == 0.0
    step(frozen, Context([1, 2]), 6, 0)
    assert frozen.table.values == learned.table.values


def test_a_preloaded_table_starts_every_prompt(tmp_path):
    artifact, learned = saved(tmp_path / "q")
    controller = QLearning(state="preloaded", table=artifact.value, draft_cost=0.14)
    step(controller, Context([1, 2]), 6, 0)
    assert controller.table.values != learned.table.values
    controller.begin(Context([1, 2]), None)
    assert controller.table.values == learned.table.values


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        ({"cost_bins": [1, 2]}, {}, r"must have cost_bins \[1.0, 2.0\] as configured, got \[2.0, "),
        ({"signals": ["acceptance"]}, {}, r"signal_bins \{'acceptance': .* got \{\}"),
        ({}, {"q": np.zeros((4, 3))}, r"q of the Q-table must be \[states, actions\] \[89, 2\], got \[4, 3\]"),
        ({}, {"q": np.full((89, 2), np.inf)}, "q of the Q-table must be finite"),
        ({}, {"bins": {"actions": ["GO", "STOP"]}}, r"must have actions .* got \['GO', 'STOP'\]"),
        ({}, {"steps": None}, "the state must be of a QLearning"),
    ],
)
def test_tables_of_other_bins_and_damaged_ones_are_refused(arguments, changes, message):
    table = {**QLearning(draft_cost=0.1).state_dict(), **changes}
    with pytest.raises(ValueError, match=message):
        QLearning(state="preloaded", table=table, **arguments)


def test_random_decisions_are_counted():
    """With epsilon 1 by decision every decision is random; by step as well; after warm-up none is."""
    for exploration in ("decision", "step"):
        controller = QLearning(
            draft_cost=0.14, exploration=exploration, epsilon=1.0, epsilon_decay=0.01, epsilon_min=0.0, warm_up=20
        )
        context = Context([1, 2])
        for _ in range(21):
            step(controller, context, 4, 2)
        made, random = controller.decisions
        assert made == random > 20
        for _ in range(20):
            step(controller, context, 4, 2)
        assert controller.exploring < 0.01
        assert controller.decisions[0] > made
        assert controller.decisions[1] == random
