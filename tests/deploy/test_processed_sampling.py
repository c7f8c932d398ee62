"""Penalties, biases and ``min_p`` with trees: the output of plain decoding, and its distribution over joint steps."""

from collections import Counter
from itertools import product

import pytest
import torch
from helpers.branching import p_value
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
)

from specexp import Decoder
from specexp.builders import Chain, StaticTree
from specexp.core.language_model import LanguageModel
from specexp.deploy.processed_sampling import CountPenalties, ProcessedSampling
from specexp.drafters import PromptLookup, TokenRecycling
from specexp.testing.fakes import hashed_model

V, PROMPT = 5, [1, 2, 1]
TREE = StaticTree([[0], [1], [0, 0], [0, 1], [0, 0, 0]])
PROCESSORS = {
    "presence": [CountPenalties(3, 1.5, 0.0)],
    "frequency": [CountPenalties(3, 0.0, 0.9)],
    "repetition": [RepetitionPenaltyLogitsProcessor(1.6)],
    "bias": [SequenceBiasLogitsProcessor({(0,): -100.0, (3,): 1.5})],
    "forced": [SequenceBiasLogitsProcessor({(3,): 100.0})],
    "all": [
        SequenceBiasLogitsProcessor({(2,): 2.0}),
        RepetitionPenaltyLogitsProcessor(1.2),
        CountPenalties(3, 0.5, 0.5),
    ],
    "min_p": [TemperatureLogitsWarper(0.8), MinPLogitsWarper(0.2)],
}


def verifier(name, temperature):
    found = ProcessedSampling()
    found.set_up(LogitsProcessorList(PROCESSORS[name]), temperature)
    return found


def decode(name, temperature, seed, count, *parts):
    model = LanguageModel(hashed_model(V))
    decoder = Decoder(model, *(parts or (None, None)), verifier(name, temperature))
    return tuple(decoder.generate(PROMPT, max_new_tokens=count, seed=seed).token_ids)


@pytest.mark.variants(4)
@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_with_trees_are_those_of_plain_decoding(name, temperature):
    for seed in range(3):
        plain = decode(name, temperature, seed, 24)
        assert decode(name, temperature, seed, 24, TokenRecycling(k=2), TREE) == plain
        assert decode(name, temperature, seed, 24, PromptLookup(), Chain(4)) == plain


def law(name):
    """The probability of every output of three tokens."""
    model, shares = hashed_model(V), {}
    for output in product(range(V), repeat=3):
        share = 1.0
        for place, token in enumerate(output):
            ids = torch.tensor([[*PROMPT, *output[:place]]])
            scores = LogitsProcessorList(PROCESSORS[name])(ids, model(ids).logits[:, -1].float())
            share *= float(scores[0].double().softmax(-1)[token])
        shares[output] = share
    return shares


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all", "min_p"])
def test_sampled_outputs_of_three_tokens_have_the_joint_distribution(name):
    seen = Counter(decode(name, 1.0, seed, 3, TokenRecycling(k=2), TREE) for seed in range(400))
    assert p_value(seen, law(name)) > 1e-3


def test_counts_do_not_include_the_prompt():
    scores = torch.zeros(1, V)
    penalized = CountPenalties(3, 0.5, 0.25)(torch.tensor([[1, 2, 1, 4, 4]]), scores)
    assert penalized.tolist() == [[0, 0, 0, 0, -1.0]]


def test_a_bias_of_minus_100_bans_a_token_and_of_100_forces_it():
    assert 0 not in decode("bias", 1.0, 1, 24)
    assert decode("forced", 1.0, 1, 6, TokenRecycling(k=2), TREE) == (3,) * 6
