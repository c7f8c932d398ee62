"""The embedded pair as it is served: an output does not depend on other requests, eager and compiled."""

from functools import cache

import pytest
import torch
from helpers.served import Client, check_schedule, go_through

from specexp.bench.arm import eos_of
from specexp.builders import Chain, StaticTree
from specexp.core.parts import Parts
from specexp.deploy.server.decoding_thread import DecodingThread, Ended
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling
from specexp.models.pair import load_pair
from specexp.models.runtime import runtime_of

TREE = StaticTree([[0], [1], [2], [0, 0], [0, 1], [0, 0, 0]])
CASES = [
    *((seed, "float32", "eager") for seed in (0, 1, *range(10, 60))),
    *((seed, "bfloat16", "auto") for seed in range(20)),
]
"""In bfloat16 too a row's logits of a compiled pass do not depend on the other rows."""


@cache
def pair(dtype):
    return load_pair("stdlib", target_dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "dtype", "mode"), CASES)
def test_outputs_of_the_pair_equal_those_of_single_requests(seed, dtype, mode):
    models = pair(dtype)
    parts = [
        Parts(DraftModel(models.draft, coupled=True), TREE),
        Parts(TokenRecycling(k=4, state="carry"), TREE),
        Parts(PromptLookup(), Chain(6)),
    ][seed % 3]
    target, reference = runtime_of(models.target, mode), runtime_of(models.target, mode)
    eos = tuple(eos_of(models.tokenizer, models.target))
    check_schedule(target, reference, parts, seed, target.vocab_size, eos)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_rounding_of_deterministic_lanes_does_not_depend_on_other_requests(seed):
    """In bfloat16, by the model's own code."""
    models = pair("bfloat16")
    eos = tuple(eos_of(models.tokenizer, models.target))

    def thread(lanes):
        target, parts = runtime_of(models.target, "eager"), Parts(TokenRecycling(k=4, state="cold"), TREE)
        return DecodingThread(target, parts, lanes=lanes, eos_token_ids=eos, deterministic=True)

    def clients():
        return [Client([seed, 7, i % 3], seed=i, most=40, temperature=0.7 * (i % 2)) for i in range(6)]

    together = clients()
    go_through(thread(4), together, seed)
    for client, other in zip(together, clients(), strict=True):
        alone = thread(1)
        alone.submit([other.output])
        with torch.inference_mode():
            while other.end is None:
                alone.round()
        assert client.tokens == other.tokens[: None if isinstance(client.end, Ended) else len(client.tokens)]
