"""The end of an answer where it begins to repeat: the rule, and the loop that applies it."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, strategies as st

from specexp.bench.hugging_face_arm import Repetition
from specexp.builders import Chain
from specexp.core.context import repeats
from specexp.core.loop import Decoder
from specexp.core.outcome import GenerationResult
from specexp.testing.fakes import FakeCausalLM, FakeDrafter

VOCABULARY = 6
TOKENS = st.integers(1, VOCABULARY - 1)
ANSWERS = st.builds(
    lambda head, block, rest: (head + block * 30)[:90] + rest,
    st.lists(TOKENS, max_size=30),
    st.lists(TOKENS, min_size=1, max_size=30),
    st.lists(TOKENS, max_size=10),
)
"""Answers that mostly end in a loop."""


def first_end(answer: list[int]) -> int | None:
    """The shortest beginning of which the last 24 or more tokens are three or more copies, the last may be cut."""
    for end in range(24, len(answer) + 1):
        for period in range(1, 33):
            tail = answer[end - max(24, 3 * period) : end] if end >= 3 * period else []
            if tail and all(one == tail[place % period] for place, one in enumerate(tail)):
                return end
    return None


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [([7] * 23, False), ([7] * 24 + [1], False), ([*range(32)] * 3, True), ([*range(33)] * 4, False)],
)
def test_a_long_repeated_end_is_a_repetition(token_ids, expected):
    assert repeats(token_ids) is expected


def decoded(answer: list[int], right: list[bool], length: int, **ending) -> GenerationResult:
    """Decode ``answer`` after a prompt of one token, with a chain that is wrong wherever ``right`` is false."""

    def next_logits(tokens: tuple[int, ...]) -> list[float]:
        return [float(token == answer[(len(tokens) - 1) % len(answer)]) for token in range(VOCABULARY)]

    def guess(tokens):
        place = len(tokens) - 1
        return [answer[place % len(answer)] if right[place % len(right)] else 0]

    decoder = Decoder(FakeCausalLM(next_logits, VOCABULARY), FakeDrafter(guess, max_candidates=1), Chain(length))
    return decoder.generate([0], max_new_tokens=len(answer), **ending)


@given(answer=ANSWERS, right=st.lists(st.booleans(), min_size=1, max_size=7), length=st.integers(1, 9))
def test_the_end_is_the_first_repetition_however_many_tokens_a_step_commits(answer, right, length):
    found, end = decoded(answer, right, length, stop_at_repetition=True), first_end(answer)
    assert found.token_ids == answer[:end]
    assert found.finish_reason == ("length" if end is None else "repetition")
    assert found.accepted_drafts + found.bonus_tokens == len(found.token_ids)
    assert decoded(answer, right, length).token_ids == answer


@given(answer=ANSWERS, cuts=st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_transformers_stops_at_the_same_token_however_many_a_pass_adds(answer, cuts):
    criterion, ends = Repetition(2), [0]
    while ends[-1] < len(answer):
        ends.append(min(len(answer), ends[-1] + cuts[len(ends) % len(cuts)]))
    for _, end in pairwise(ends):
        if criterion(torch.tensor([[9, 9, *answer[:end]]]), None).item():
            break
    assert criterion.end == first_end(answer)


def test_eos_before_the_repetition_ends_the_answer():
    answer = [1, 2, 3, 4] * 10
    assert decoded(answer, [True], 4, stop_at_repetition=True).token_ids == answer[:24]
    found = decoded([*answer[:23], 5, *answer], [True], 4, stop_at_repetition=True, eos_token_id=5)
    assert (found.token_ids, found.finish_reason) == ([*answer[:23], 5], "eos")


def test_a_repetition_in_the_prompt_does_not_count():
    model = FakeCausalLM(lambda tokens: [0.0, 1.0, 0.0], 3)
    assert len(Decoder(model).generate([1] * 50, stop_at_repetition=True).token_ids) == 24
