"""Logits nobody can sample from are named, with model, step and prompt; impossible tokens are none of them."""

import pytest
import torch

from specexp.core.context import Context
from specexp.core.loop import Decoder
from specexp.core.sampling import LogitsError, check_logits
from specexp.testing.fakes import FakeCausalLM
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling, SampleMatch, TypicalAcceptance

NAN, INF = float("nan"), float("inf")


def context(tokens=4, steps=2, sequence="HumanEval/3#0"):
    made = Context([1] * tokens, sequence=sequence)
    made.steps = steps
    return made


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("row", "found"),
    [
        ([0.0, NAN, 1.0], "NaN"),
        ([NAN, INF, 1.0], "NaN"),
        ([0.0, INF, 1.0], "infinite"),
        ([-INF, INF, 1.0], "infinite"),
        ([-INF, -INF, -INF], "only -inf"),
    ],
)
def test_what_cannot_be_sampled_is_named(row, found, dtype):
    for place in (0, 2):
        rows = [[1.0, 2.0, 3.0]] * 3
        rows[place] = row
        with pytest.raises(LogitsError) as refusal:
            check_logits(torch.tensor(rows, dtype=dtype), "draft", context())
        assert str(refusal.value) == (
            f"the draft model gave {found} logits in step 3 of prompt 'HumanEval/3#0' (after 4 tokens): its weights, "
            "dtype or attention are at fault, and nothing can be sampled"
        )


@pytest.mark.parametrize("row", [[0.0, -INF, 1.0], [-INF, -INF, -3e38], [3e38, -3e38, 0.0]])
def test_impossible_tokens_and_large_numbers_are_no_fault(row):
    check_logits(torch.tensor([row, row]), "target", context())


@pytest.mark.parametrize(
    "verifier", [Greedy(), KeyedSampling(1.0), RejectionSampling(), SampleMatch(), TypicalAcceptance()]
)
def test_plain_decoding_stops_at_the_step_that_went_wrong(verifier):
    """The fourth new token of a prompt of ten; the sentence is a ValueError, as all refusals are."""

    def next_logits(tokens):
        return [NAN] * 5 if len(tokens) == 13 else [0.0, 1.0, 2.0, 1.0, 0.0]

    decoder = Decoder(FakeCausalLM(next_logits, 5), verifier=verifier)
    with pytest.raises(
        ValueError, match=r"the target model gave NaN logits in step 4 of prompt 7 \(after 13 tokens\)"
    ):
        decoder.generate([1] * 10, max_new_tokens=9, sequence=7, seed=0)
    assert len(decoder.generate([1] * 10, max_new_tokens=3, sequence=7, seed=0).token_ids) == 3
