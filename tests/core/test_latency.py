"""The milliseconds of passes and steps in a latency profile, computed by hand."""

import dataclasses
import json

import pytest

from specexp.artifacts import ArtifactError, value_of
from specexp.builders import Chain, Choice, DySpecGreedy, Graft, ParametricTree
from specexp.config.artifacts import save_artifact
from specexp.core.latency import LatencyProfile, Overhead
from specexp.core.parts import Parts
from specexp.drafters import DraftModel, PhraseCache, PromptLookup, TokenRecycling, Union

PROFILE = LatencyProfile("by tokens", {1: 100, 9: 180, 17: 200}, {1: 10, 3: 20}, step_ms=4)
NOISY = LatencyProfile("noisy", {1: 100, 8: 120, 16: 112})
CONSTANT = LatencyProfile("constant", {1: 5000}, {1: 25})


@pytest.mark.parametrize(
    ("profile", "tokens", "seconds"),
    [
        *((PROFILE, tokens, ms) for tokens, ms in ((1, 0.1), (5, 0.14), (9, 0.18), (13, 0.19), (25, 0.22), (97, 0.4))),
        (NOISY, 12, 0.116),
        (NOISY, 4096, 0.112),  # never falling beyond the last point
        (CONSTANT, 700, 5),
    ],
)
def test_a_target_pass_is_linear_between_points_and_continues_with_the_last_slope(profile, tokens, seconds):
    assert profile.target_seconds(tokens) == pytest.approx(seconds)


def test_a_pass_costs_as_much_as_the_next_larger_bucket():
    """Stated for 1, 8 and 64 tokens: a pass of 9 is padded to 64."""
    stepped = LatencyProfile("stepped", {1: 10.0, 8: 12.0, 64: 20.0}, {1: 1.0, 4: 2.0}, buckets=True)
    assert [1e3 * stepped.target_seconds(tokens) for tokens in (1, 2, 8, 9, 64)] == [10, 12, 12, 20, 20]
    assert 1e3 * stepped.draft_seconds(3) == 2
    assert LatencyProfile.from_dict(stepped.to_dict()) == stepped


def test_more_tokens_than_stated_exceed_a_profile_of_several_points():
    assert PROFILE.max_target_tokens == 17
    assert not PROFILE.exceeded_by(17)
    assert PROFILE.exceeded_by(18)
    assert not CONSTANT.exceeded_by(700)


def test_a_step_costs_its_passes_and_the_drafting_overhead():
    assert PROFILE.step_seconds(1) == pytest.approx(0.1)  # plain decoding: nothing beside the pass
    assert PROFILE.step_seconds(5) == pytest.approx(0.14 + 0.004)
    assert PROFILE.step_seconds(5, [1, 2, 4]) == pytest.approx(0.14 + 0.010 + 0.015 + 0.025 + 0.004)
    assert PROFILE.step_seconds(1, [1]) == pytest.approx(0.1 + 0.010 + 0.004)


def test_a_draft_pass_without_milliseconds_is_refused():
    with pytest.raises(ValueError, match="'target only' states no draft_ms, but a draft model was run"):
        LatencyProfile("target only", {1: 5}).step_seconds(3, [1])


@pytest.mark.parametrize(
    ("target_ms", "draft_ms", "said"),
    [
        ({}, {}, "target_ms of latency profile 'x' must hold milliseconds above 0"),
        ({1: 0.0}, {}, "target_ms of latency profile 'x' must hold milliseconds above 0"),
        ({2: 5.0}, {}, "target_ms of latency profile 'x' must have an entry for 1 token"),
        ({1: 5.0}, {4: 1.0}, "draft_ms of latency profile 'x' must have an entry for 1 token"),
        ({0: 4.0, 1: 5.0}, {}, "target_ms.0 must be >= 1, got 0"),
    ],
)
def test_profiles_that_say_nothing_of_a_pass_are_refused(target_ms, draft_ms, said):
    with pytest.raises(ValueError, match=said):
        LatencyProfile("x", target_ms, draft_ms)


def test_nodes_and_new_tokens_cost_beside_the_passes():
    profile = LatencyProfile("x", {1: 100}, {1: 10}, step_ms=4, node_ms=0.5, token_ms=2)
    assert profile.step_seconds(1) == pytest.approx(0.102)  # a plain step has a new token, too
    assert profile.step_seconds(5, [1, 1], new_tokens=3) == pytest.approx(0.1 + 0.02 + 0.004 + 0.002 + 0.006)
    assert profile.step_parts(5, [1], 3) == pytest.approx((0.1, 0.01, 0.012))
    assert profile.plain_seconds(40, 3) == pytest.approx(3 * 0.102)


def test_a_longer_prefix_adds_to_both_passes_and_a_shorter_one_takes_less():
    profile = LatencyProfile("x", {1: 100}, {1: 10}, prefix_tokens=1000, target_prefix_ms=20, draft_prefix_token_ms=1)
    assert profile.target_seconds(4) == profile.target_seconds(4, 1000) == 0.1
    assert profile.target_seconds(4, 2500) == pytest.approx(0.130)
    assert profile.target_seconds(4, 0) == pytest.approx(0.080)
    assert profile.draft_seconds(4, 3000) == pytest.approx(0.010 + 2 * 4 * 0.001)
    steep = LatencyProfile("x", {1: 100}, prefix_tokens=1000, target_prefix_ms=500)
    assert steep.target_seconds(1, 0) == pytest.approx(0.01)  # never nothing
    expected = sum(0.1 + 0.02 * (prefix - 1000) / 1e3 for prefix in (4, 5, 6))
    assert profile.plain_seconds(5, 3) == pytest.approx(expected)


COUPLED = TokenRecycling(k=4, coupled=True)


@pytest.mark.parametrize(
    ("drafter", "builder", "label"),
    [
        (None, None, "plain"),
        (TokenRecycling(), Chain(2), "TokenRecycling + StaticTree"),
        (COUPLED, ParametricTree(), "coupled TokenRecycling + StaticTree"),
        (DraftModel(), DySpecGreedy(8), "DraftModel + DySpecGreedy"),
        (Union([PromptLookup(), COUPLED]), Chain(2), "coupled Union(PromptLookup, TokenRecycling) + StaticTree"),
        (
            PhraseCache(DraftModel()),
            Graft(Choice([Chain(2), Chain(4), DySpecGreedy(8)])),
            "PhraseCache(DraftModel) + Graft(Choice(StaticTree, DySpecGreedy))",
        ),
    ],
)
def test_compositions_with_equal_costs_have_one_label(drafter, builder, label):
    assert Parts(drafter, builder).label == label


def test_a_composition_has_its_own_costs_or_those_of_its_drafter():
    listed = {
        "plain": Overhead(token_ms=0.5),
        "DraftModel + StaticTree": Overhead(step_ms=2.0),
        "DraftModel + DySpecGreedy": Overhead(step_ms=9.0, node_ms=0.1),
    }
    profile = LatencyProfile("x", {1: 100}, {1: 10}, step_ms=4, overheads=listed)
    greedy = profile.of("DraftModel + DySpecGreedy")
    assert (greedy.step_ms, greedy.node_ms, greedy.token_ms) == (9.0, 0.1, 0.0)
    assert profile.of("DraftModel + DySpecThreshold").step_ms == 2.0
    assert profile.of("coupled DraftModel + StaticTree").step_ms == 4
    assert profile.of("plain").step_seconds(1) == pytest.approx(0.1005)
    assert greedy.of("DraftModel + StaticTree") == greedy
    assert profile.plain_seconds(9, 2) == pytest.approx(0.201)


def test_it_is_read_back_from_its_plain_values():
    profile = LatencyProfile(
        "x", {1: 100, 4: 120}, {1: 3}, 1.0, 0.5, 0.25, 64, 2.0, 0.5, 0.1, 0.01,
        {"plain": Overhead(token_ms=1.0)}, "measured",
    )  # fmt: skip
    assert LatencyProfile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile
    assert not LatencyProfile.from_dict(profile.to_dict(), modelled=False).modelled


def test_a_profile_is_taken_from_an_artifact(tmp_path):
    stored = LatencyProfile("a device", {1: 100}, {1: 3}, source="measured")
    save_artifact(tmp_path / "profile", "latency-profile", {"profile.json": stored.to_dict()})
    folder = str(tmp_path / "profile")
    path = value_of("latency-profile", f"{folder}/best")
    assert LatencyProfile(artifact=path) == stored
    renamed = LatencyProfile("mine", artifact=path, modelled=False)
    assert (renamed.name, renamed.source, renamed.modelled) == ("mine", "measured", False)
    assert dataclasses.replace(LatencyProfile(artifact=path), step_ms=1.0).step_ms == 1.0
    with pytest.raises(ValueError, match=r"was given artifact .* and step_ms: the artifact sets step_ms"):
        LatencyProfile(artifact=path, step_ms=2.0)
    with pytest.raises(ArtifactError, match="has best, v1"):
        value_of("latency-profile", f"{folder}/bset")
    with pytest.raises(ValueError, match="needs a name, such as its models and device, or an artifact"):
        LatencyProfile(target_ms={1: 5})
