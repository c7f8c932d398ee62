"""Pre-cut's rewards at its paper's costs and acceptance, without a model."""

import pytest
from helpers.simulated_drafts import LENGTHS, MOST, SPREADS, Drafts, controllers, published_reward


def test_the_published_reward_is_negative_even_if_every_draft_is_accepted():
    rewards = [published_reward(length) for length in range(1, MOST + 1)]
    assert max(rewards) < 0
    assert rewards[11] == pytest.approx(-0.38, abs=0.005)
    assert rewards[23] == pytest.approx(-0.24, abs=0.005)


def test_the_simulated_fixed_lengths_are_near_the_papers():
    """Table 3, speculative, without reuse."""
    drafts = Drafts.of(20_000)
    speedups = [drafts.fixed(length).speedup for length in LENGTHS]
    assert speedups == pytest.approx([2.29, 2.67, 2.68, 2.55, 2.25, 2.04], rel=0.2)


def test_ours_is_as_fast_as_the_best_fixed_length_and_the_published_reward_is_not():
    drafts = Drafts.of(1_000)
    best = max(drafts.fixed(length).speedup for length in LENGTHS)
    assert drafts.controlled(controllers()["ours"]).speedup > 0.95 * best
    published = drafts.controlled(controllers()["as published"])
    assert published.speedup < 0.85 * best
    assert published.drafts > 12


@pytest.mark.slow
@pytest.mark.parametrize("spread", SPREADS)
def test_that_holds_for_every_spread_of_confidences(spread):
    drafts = Drafts.of(6_000, spread)
    best = max(drafts.fixed(length).speedup for length in LENGTHS)
    found = {name: drafts.controlled(controller).speedup for name, controller in controllers().items()}
    assert found["ours"] > 0.98 * best
    assert max(found["as published"], found["reward of algorithm 1"]) < 0.8 * best
