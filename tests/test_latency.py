"""What a latency profile says of a pass and of a step, computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specexp.latency import LatencyProfile

PROFILE = LatencyProfile("by tokens", {1: 100, 9: 180, 17: 200}, {1: 10, 3: 20}, step_ms=4)


@pytest.mark.parametrize(
    ("tokens", "seconds"), [(1, 0.1), (5, 0.14), (9, 0.18), (13, 0.19), (17, 0.2), (25, 0.22), (97, 0.4)]
)
def test_a_target_pass_lies_on_lines_between_points_and_goes_on_with_the_last_slope(tokens, seconds):
    assert PROFILE.target_seconds(tokens) == pytest.approx(seconds)


def test_a_single_point_holds_for_any_number_of_tokens():
    profile = LatencyProfile("constant", {1: 5000}, {1: 25})
    assert profile.target_seconds(700) == 5
    assert profile.draft_seconds(64) == 0.025
    assert not profile.exceeded_by(700)


def test_beyond_falling_milliseconds_a_pass_takes_no_less():
    profile = LatencyProfile("noisy", {1: 100, 8: 120, 16: 112})
    assert profile.target_seconds(12) == pytest.approx(0.116)
    assert profile.target_seconds(4096) == pytest.approx(0.112)


def test_points_may_be_stated_in_any_order():
    assert LatencyProfile("x", {9: 180, 1: 100}).target_seconds(5) == pytest.approx(0.14)


def test_it_says_where_it_stops_stating_milliseconds():
    assert PROFILE.max_target_tokens == 17
    assert not PROFILE.exceeded_by(17)
    assert PROFILE.exceeded_by(18)


def test_a_step_is_its_passes_and_what_drafting_costs_beside_them():
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
        ({2: 5.0}, {}, "target_ms of latency profile 'x' states no milliseconds for 1 token"),
        ({1: 5.0}, {4: 1.0}, "draft_ms of latency profile 'x' states no milliseconds for 1 token"),
        ({0: 4.0, 1: 5.0}, {}, "target_ms of latency profile 'x' is stated for 0 tokens; 1 or more"),
    ],
)
def test_profiles_that_say_nothing_of_a_pass_are_refused(target_ms, draft_ms, said):
    with pytest.raises(ValueError, match=said):
        LatencyProfile("x", target_ms, draft_ms)


def test_what_it_models_is_called_so():
    assert PROFILE.label == "modelled: by tokens (assumed)"
    told = PROFILE.to_dict()
    assert told["target_ms"] == {"1": 100, "9": 180, "17": 200}
    assert told["step_ms"] == 4


@given(
    st.dictionaries(st.integers(2, 99), st.floats(0.5, 900), max_size=5),
    st.floats(0.5, 900),
    st.integers(1, 99),
)
def test_between_points_a_pass_takes_no_less_than_the_shortest_and_no_more_than_the_longest(
    points, one, tokens
):
    profile = LatencyProfile("x", {1: one, **points})
    stated = [ms / 1e3 for ms in profile.target_ms.values()]
    assert all(
        profile.target_seconds(place) == pytest.approx(ms / 1e3) for place, ms in profile.target_ms.items()
    )
    if tokens <= profile.max_target_tokens:
        assert min(stated) - 1e-12 <= profile.target_seconds(tokens) <= max(stated) + 1e-12
