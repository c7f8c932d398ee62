"""A profile fitted to made passes and steps finds their costs, and is compared with live decoding."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, strategies as st

from specexp.artifacts.kinds.latency_profile import MeasuredPass
from specexp.core.latency import LatencyProfile, Overhead
from specexp.profile.check import check_live, check_table, checks_of, headline
from specexp.profile.fit import fit_overhead, fit_pass, fit_profile
from specexp.profile.measure import StepTiming

pytestmark = pytest.mark.unit

TRUE = LatencyProfile(
    "made", {1: 10.0, 8: 11.0, 32: 14.0}, {1: 2.0, 32: 4.0}, prefix_tokens=256, target_prefix_ms=2.0,
    draft_prefix_token_ms=0.02,
)  # fmt: skip


def made_arm(composition: str, steps: list[StepTiming]) -> SimpleNamespace:
    return SimpleNamespace(arm=SimpleNamespace(name="made"), composition=composition, steps=steps)


def passes(base, prefix_ms=0.0, token_ms=0.0, prefixes=(64, 256, 448), sizes=(1, 2, 4, 8, 16, 32)):
    """``base`` milliseconds by tokens behind 256, and what a longer prefix adds."""
    found = []
    for prefix, tokens in product(prefixes, sizes):
        ms = base(tokens) + (prefix_ms + token_ms * tokens) * (prefix - 256) / 1e3
        found.append(MeasuredPass(tokens, prefix, ms, ms, ms))
    return found


def steps(profile, count=200, seed=0, drafts=True, noise=0.0):
    """Steps of trees of many sizes with the times of a profile."""
    generator = np.random.default_rng(seed)
    made = []
    for number in range(count):
        nodes = int(generator.integers(1, 32)) if drafts and number % 10 else 0
        fed = (1, 4) if nodes else ()
        new_tokens = 1 + int(generator.integers(0, min(nodes, 5) + 1))
        prefix = int(generator.integers(20, 400))
        seconds = profile.step_seconds(nodes + 1, fed, new_tokens, prefix)
        seconds *= float(np.exp(noise * generator.standard_normal()))
        made.append(StepTiming(nodes + 1, fed, new_tokens, prefix, seconds))
    return made


@examples(20)
@given(st.floats(0, 5), st.floats(0, 0.1))
def test_a_pass_is_stated_at_the_middle_prefix_with_what_a_longer_one_adds(prefix_ms, token_ms):
    fitted = fit_pass(passes(lambda tokens: 10 + 0.1 * tokens, prefix_ms, token_ms), "target")
    assert fitted["prefix_tokens"] == 256
    expected = {tokens: 10 + 0.1 * tokens for tokens in (1, 2, 4, 8, 16, 32)}
    assert fitted["target_ms"] == pytest.approx(expected, rel=1e-3)
    assert fitted["target_prefix_ms"] == pytest.approx(prefix_ms, abs=0.05)
    assert fitted["target_prefix_token_ms"] == pytest.approx(token_ms, abs=0.005)


def test_a_pass_after_one_prefix_or_faster_after_longer_ones_has_no_slope():
    one = fit_pass(passes(lambda tokens: 10.0, prefixes=(300,)), "draft")
    assert (one["prefix_tokens"], one["draft_prefix_ms"], one["draft_prefix_token_ms"]) == (300, 0, 0)
    falling = fit_pass(passes(lambda tokens: 10.0, prefix_ms=-3.0), "draft")
    assert (falling["draft_prefix_ms"], falling["draft_prefix_token_ms"]) == (0, 0)
    assert falling["draft_ms"][4] == pytest.approx(10.0)


@examples(20)
@given(st.floats(0, 3), st.floats(0, 0.3), st.floats(0, 1))
def test_what_steps_cost_beside_their_passes_is_found(step_ms, node_ms, token_ms):
    true = replace(TRUE, step_ms=step_ms, node_ms=node_ms, token_ms=token_ms)
    found = fit_overhead(TRUE, steps(true))
    assert found.step_ms == pytest.approx(step_ms, abs=0.05)
    assert found.node_ms == pytest.approx(node_ms, abs=0.01)
    assert found.token_ms == pytest.approx(token_ms, abs=0.05)


def test_a_few_disturbed_steps_do_not_count():
    true = replace(TRUE, step_ms=1.0, node_ms=0.1, token_ms=0.2)
    taken = steps(true, 400)
    for number in (3, 77, 200, 301):
        taken[number] = replace(taken[number], seconds=taken[number].seconds + 0.5)
    found = fit_overhead(TRUE, taken)
    assert (found.step_ms, found.node_ms, found.token_ms) == pytest.approx((1.0, 0.1, 0.2), rel=1e-3)


def test_trees_of_one_size_share_their_cost_between_step_and_nodes():
    taken = [step for step in steps(replace(TRUE, step_ms=2.0), 4000) if step.tokens in (1, 11)]
    found = fit_overhead(TRUE, taken)
    assert found.step_ms == pytest.approx(1.0, rel=0.05)
    assert found.node_ms == pytest.approx(0.1, rel=0.05)


def test_every_composition_has_costs_of_its_own_and_is_predicted_by_them():
    costs = {
        "plain": Overhead(token_ms=0.4),
        "DraftModel + StaticTree": Overhead(1.0, 0.05, 0.2),
        "DraftModel + DySpecGreedy": Overhead(2.0, 0.15, 0.1),
    }
    true = replace(TRUE, overheads=costs)
    arms = [
        made_arm(label, steps(true.of(label), seed=number, drafts=label != "plain", noise=0.01))
        for number, label in enumerate(costs)
    ]
    sizes = (1, 8, 32)
    target = passes(lambda tokens: TRUE.target_ms[tokens], 2.0, sizes=sizes)
    draft = passes(lambda tokens: 1e3 * TRUE.draft_seconds(tokens), 0.0, 0.02, sizes=sizes)
    profile = fit_profile({"name": "found"}, target, draft, arms)
    assert (profile.name, profile.source, profile.prefix_tokens) == ("found", "measured", 256)
    assert profile.overheads.keys() == costs.keys()
    assert profile.overheads["DraftModel + DySpecGreedy"].step_ms > 1.0
    assert profile.overheads["DraftModel + StaticTree"].node_ms == pytest.approx(0.05, abs=0.02)
    assert 0.05 < profile.node_ms < 0.15  # of a composition that was not measured: what all drafting ones cost together
    for arm in arms:
        own = profile.of(arm.composition)
        fitted = [own.step_seconds(one.tokens, one.pass_tokens, one.new_tokens, one.prefix) for one in arm.steps]
        assert sum(fitted) == pytest.approx(sum(one.seconds for one in arm.steps), rel=0.01)


LIVE = LatencyProfile("made", {1: 2.0, 16: 8.0}, overheads={"plain": Overhead(token_ms=1.0)})


def test_every_arm_is_decoded_again_prompt_by_prompt():
    decoded = []

    def live_arm(name):
        def priced(prompt, max_new_tokens, profile):
            decoded.append((prompt, name))
            return 1e3 * profile.of("plain").step_seconds(1), 2.0  # predicted and live ms a token

        arm = SimpleNamespace(name=name, reset=lambda: None)
        return SimpleNamespace(arm=arm, priced=priced)

    chosen = ["plain", "5 nodes", "14 nodes"]
    timed = SimpleNamespace(name="", arms=[live_arm(name) for name in chosen])
    checks = check_live(timed, LIVE, ["first", "second"], 8)
    assert decoded == [(prompt, name) for prompt in ("first", "second") for name in chosen]
    assert [check.arm for check in checks] == chosen
    assert (checks[0].off.ratio, checks[0].error) == pytest.approx((1.5, 0.5))


def test_a_profile_of_cold_passes_is_off_and_states_both_speedups():
    """Plain decoding at twice its price, and a tree within 2 %: the speedup is what is wrong."""
    noise = np.array([[0.9], [1.0], [1.1]])
    live = noise * [0.43, 0.62]
    ms = np.stack((noise * [0.84, 0.63], live), axis=2)
    checks = checks_of(["plain decoding", "a chain"], ms)
    off = "The profile differs from live decoding by more than 10 %"
    assert headline(checks).startswith(f"{off}: it predicts plain decoding at 1.95x")
    tree = "a chain at 1.02x [1.02, 1.02] of its live time (speedup 1.33x [1.33, 1.33] predicted, 0.69x"
    assert tree in headline(checks)
    table = check_table(checks)
    assert table.title == off
    assert [row[0] for row in table.rows] == ["plain decoding", "a chain"]


def test_a_profile_within_the_tolerance_is_reported_as_such():
    checks = checks_of(["plain decoding", "a chain"], np.array([[[1.05, 1.0], [2.0, 2.0]]] * 2))
    assert headline(checks) == "The profile is within 10 % of live decoding."
    opposite = checks_of(["plain decoding", "a chain"], np.array([[[1.06, 1.0], [1.88, 2.0]]] * 2))
    assert "a chain at 0.94x" in headline(opposite)
    assert "plain decoding at" not in headline(opposite)
