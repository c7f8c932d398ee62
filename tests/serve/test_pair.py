"""The embedded pair as it is served: what a request says hangs on nobody else, by its own code and compiled."""

from functools import cache

import pytest
from helpers.served import check_schedule

from specexp.bench.arm import eos_of
from specexp.builders import Chain, StaticTree
from specexp.core.parts import Parts
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling
from specexp.pairs.pair import load_pair
from specexp.pairs.runtime import runtime_of

TREE = StaticTree([[0], [1], [2], [0, 0], [0, 1], [0, 0, 0]])


@cache
def pair(dtype):
    return load_pair("stdlib", target_dtype=dtype)


def check(seed, dtype, mode):
    models = pair(dtype)
    parts = [
        Parts(DraftModel(models.draft, coupled=True), TREE),
        Parts(TokenRecycling(k=4, state="carry"), TREE),
        Parts(PromptLookup(), Chain(6)),
    ][seed % 3]
    target, reference = runtime_of(models.target, mode), runtime_of(models.target, mode)
    eos = tuple(eos_of(models.tokenizer, models.target))
    check_schedule(target, reference, parts, seed, target.vocab_size, eos)


@pytest.mark.parametrize("seed", range(2))
def test_requests_on_the_pair_say_what_they_say_alone(seed):
    check(seed, "float32", "eager")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 60))
def test_fifty_schedules_on_the_pair(seed):
    check(seed, "float32", "eager")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_compiled_passes_do_not_round_otherwise_in_company(seed):
    """In bfloat16 too, bit by bit: a row's logits hang on no other row of its pass."""
    check(seed, "bfloat16", "auto")
