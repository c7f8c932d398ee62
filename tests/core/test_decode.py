"""A step by arithmetic: accepted tokens, the end of the output, counters and the cache."""

from dataclasses import replace

import pytest

from specexp.builders import Chain, StaticTree
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan
from specexp.core.loop import Decoder
from specexp.testing.fakes import FakeDrafter, counting_model
from specexp.verifiers import Greedy

pytestmark = pytest.mark.unit

VOCABULARY = 10


def counting(length=4, *, wrong_after=None, **model):
    """A chain over the model that counts; the drafter is right until after ``wrong_after``."""
    drafter = FakeDrafter(
        lambda tokens: [0 if tokens[-1] == wrong_after else (tokens[-1] + 1) % VOCABULARY], max_candidates=1
    )
    return Decoder(counting_model(VOCABULARY, **model), drafter, Chain(length))


def steps_of(decoder, prompt, **arguments):
    seen = []
    result = decoder.generate(prompt, observers=[seen.append], **arguments)
    return result, seen


def test_a_right_chain_of_four_is_accepted_with_a_bonus_token():
    result, steps = steps_of(counting(4), [0], max_new_tokens=10)
    assert result.token_ids == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert [step.new_token_ids for step in steps] == [(1, 2, 3, 4, 5), (6, 7, 8, 9, 0)]
    assert [step.accepted for step in steps] == [(1, 2, 3, 4), (1, 2, 3, 4)]
    assert (result.steps, result.accepted_drafts, result.bonus_tokens) == (2, 8, 2)
    assert result.tokens_per_step == 5


def test_a_chain_is_accepted_up_to_the_first_mismatch():
    result, steps = steps_of(counting(4, wrong_after=2), [0], max_new_tokens=8)
    assert result.token_ids == [1, 2, 3, 4, 5, 6, 7, 8]
    assert steps[0].new_token_ids == (1, 2, 3)  # 1 and 2 drafted, 0 instead of 3 refused, 3 added
    assert steps[1].new_token_ids == (4, 5, 6, 7, 8)
    assert result.drafted_nodes == 8
    assert (result.drafted_at, result.accepted_at) == ([2, 2, 2, 2], [2, 2, 1, 1])


def test_a_sibling_is_accepted_where_the_first_candidate_is_wrong():
    drafter = FakeDrafter(lambda tokens: [0, (tokens[-1] + 1) % VOCABULARY], max_candidates=2)
    decoder = Decoder(counting_model(VOCABULARY), drafter, StaticTree([[0], [1], [0, 0], [1, 0], [1, 1]]))
    result, steps = steps_of(decoder, [3], max_new_tokens=6)
    assert result.token_ids == [4, 5, 6, 7, 8, 9]
    assert steps[0].accepted == (2, 5)  # rows: root, [0], [1], [0, 0], [1, 0], [1, 1]
    assert result.drafted_at == result.accepted_at == [2, 2]  # positions, however many nodes at each


@pytest.mark.parametrize(("eos", "accepted", "bonus"), [(1, 1, 0), (3, 3, 0), (4, 4, 0), (5, 4, 1), (7, 6, 1)])
def test_eos_ends_the_output_exactly_there(eos, accepted, bonus):
    result = counting(4).generate([0], max_new_tokens=30, eos_token_id=eos)
    assert result.token_ids == list(range(1, eos + 1))
    assert result.finish_reason == "eos"
    assert (result.accepted_drafts, result.bonus_tokens) == (accepted, bonus)


@pytest.mark.parametrize("max_new_tokens", range(1, 21))
def test_max_new_tokens_is_met_and_never_exceeded(max_new_tokens):
    for length in (1, 3, 4, 7):
        result, steps = steps_of(counting(length), [0], max_new_tokens=max_new_tokens)
        assert result.token_ids == [(1 + number) % VOCABULARY for number in range(max_new_tokens)]
        assert result.finish_reason == "length"
        assert result.accepted_drafts + result.bonus_tokens == max_new_tokens
        assert result.steps == -(-max_new_tokens // (length + 1))
        assert sum(len(step.new_token_ids) for step in steps) == max_new_tokens
        # No node is drafted that could not be kept.
        assert all(step.tree.shape.max_depth < max_new_tokens for step in steps)


@pytest.mark.parametrize("prompt_length", range(1, 16))
def test_the_context_limit_is_met_and_never_exceeded(prompt_length):
    for length in (1, 3, 8):
        decoder = counting(length, context_limit=16)
        result = decoder.generate([0] * prompt_length, max_new_tokens=100)
        assert len(result.token_ids) == 16 - prompt_length
        assert result.finish_reason == "context"
        assert decoder.model.cache.lengths[0] <= 16


def test_exact_room_for_the_output_ends_it_by_length():
    assert counting(4, context_limit=16).generate([0] * 6, max_new_tokens=10).finish_reason == "length"


def test_only_committed_rows_stay_in_the_cache():
    decoder = counting(4)
    result = decoder.generate([0, 1], max_new_tokens=30, eos_token_id=5)
    assert result.token_ids == [2, 3, 4, 5]
    assert decoder.model.cache.lengths[0] == 5  # all but the last token, the next root


def test_plain_decoding_takes_a_step_a_token():
    result = Decoder(counting_model(VOCABULARY)).generate([0], max_new_tokens=7)
    assert (result.steps, result.accepted_drafts, result.drafted_nodes, result.draft_passes) == (7, 0, 0, 0)


class _CostlyDrafter(FakeDrafter):
    """Every answer takes a pass of a draft model."""

    def costs_pass(self, request):
        return True

    def propose(self, context, request):
        return replace(super().propose(context, request), pass_tokens=(1,))


class _UpToTwoPasses(Controller):
    """Allows two draft passes a step, and keeps what it was asked."""

    def __init__(self):
        self.states = []

    def plan(self, context):
        return Plan()

    def keep_drafting(self, context, state):
        self.states.append((state.nodes, state.depth, len(state.pass_tokens)))
        return len(state.pass_tokens) < 2


def test_the_controller_decides_before_every_draft_pass():
    drafter = _CostlyDrafter(lambda tokens: [(tokens[-1] + 1) % VOCABULARY])
    controller = _UpToTwoPasses()
    decoder = Decoder(counting_model(VOCABULARY), drafter, Chain(6), Greedy(), controller)
    result, steps = steps_of(decoder, [0], max_new_tokens=7)
    assert [step.new_token_ids for step in steps] == [(1, 2, 3), (4, 5, 6), (7,)]
    assert [step.draft_passes for step in steps] == [2, 2, 0]
    assert result.draft_passes == 4
    assert controller.states == [(0, 0, 0), (1, 1, 1), (2, 2, 2)] * 2
