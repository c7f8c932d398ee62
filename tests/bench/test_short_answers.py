"""A run whose answers end after a few tokens warns, unless so few were asked for."""

import pytest

from specexp.bench.record import PromptRecord
from specexp.bench.report import FEWEST_TOKENS, short_answers


def answers(*tokens_and_reasons, arm="plain"):
    return [
        PromptRecord(
            arm, str(number), "c", token_ids=tuple(range(tokens)), turn_tokens=(tokens,), finish_reasons=(reason,)
        )
        for number, (tokens, reason) in enumerate(tokens_and_reasons)
    ]  # fmt: skip


def test_a_median_of_one_token_is_told():
    records = answers((1, "eos"), (1, "eos"), (40, "length"))
    assert short_answers(records, "plain").startswith("Warning: the median answer of plain has 1 token, ")


@pytest.mark.parametrize(
    "records",
    [
        answers((FEWEST_TOKENS, "eos"), (FEWEST_TOKENS, "eos")),
        answers((4, "length"), (4, "length"), (2, "eos")),  # no more were asked for
        answers((1, "eos"), arm="other"),
        [],
    ],
)
def test_nothing_is_told_of_long_answers_or_of_short_ones_asked_for(records):
    assert short_answers(records, "plain") is None
