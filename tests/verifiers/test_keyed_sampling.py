"""Keyed sampling keeps the contract and draws exact samples, whatever drafts for it."""

import numpy as np
import pytest
import torch
from helpers.branching import joint_p_value
from helpers.contracts import contract_of
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specexp.builders import StaticTree
from specexp.core.context import Context
from specexp.core.loop import Decoder
from specexp.core.noise import gumbel, place_key
from specexp.testing.fakes import FakeDrafter, bigram_model
from specexp.testing.verifiers import DeterministicVerifierContract
from specexp.verifiers import KeyedSampling

TestDefault = contract_of(DeterministicVerifierContract, lambda: KeyedSampling())
TestGreedyTemperature = contract_of(DeterministicVerifierContract, lambda: KeyedSampling(temperature=0, top_k=2))
TestHot = contract_of(DeterministicVerifierContract, lambda: KeyedSampling(temperature=1.5, top_k=4, top_p=0.9))
TestPlain = contract_of(DeterministicVerifierContract, lambda: KeyedSampling(temperature=1.0))


LOGITS = np.random.default_rng(3).standard_normal((4, 4)) * 1.2
SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.4, "top_k": 3},
    {"temperature": 0.9, "top_p": 0.8},
]


def exact(settings):
    """``[4, 4]`` probabilities after each token, by transformers' own processors."""
    processors = LogitsProcessorList([TemperatureLogitsWarper(settings["temperature"])])
    if "top_k" in settings:
        processors.append(TopKLogitsWarper(settings["top_k"]))
    if "top_p" in settings:
        processors.append(TopPLogitsWarper(settings["top_p"]))
    return torch.softmax(processors(None, torch.from_numpy(LOGITS)), dim=-1).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_three_consecutive_tokens_have_the_targets_joint_distribution(settings):
    drafter = FakeDrafter(lambda tokens: np.argsort(LOGITS[tokens[-1]])[::-1].tolist(), max_candidates=2)
    decoder = Decoder(bigram_model(LOGITS.tolist()), drafter, StaticTree([[0], [1], [0, 0]]), KeyedSampling(**settings))
    assert joint_p_value(decoder, exact(settings)) > 0.01


def test_samples_of_one_prompt_differ_and_a_rerun_repeats_them():
    decoder = Decoder(bigram_model(LOGITS.tolist()), verifier=KeyedSampling(1.0))

    def output(number, seed=0):
        return decoder.generate([1], max_new_tokens=12, sequence=f"p#{number}", seed=seed).token_ids

    outputs = [output(number) for number in range(20)]
    assert outputs == [output(number) for number in reversed(range(20))][::-1]
    assert len(set(map(tuple, outputs))) > 15
    assert outputs[0] != output(0, seed=1)


def test_the_noise_belongs_to_the_absolute_position():
    context = Context([1, 2, 3], seed=4, sequence="s")
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0))
    expected = int((logits / 0.7 + gumbel(place_key(4, "s", "target"), 9, 1, 50)[0]).argmax())
    assert KeyedSampling(0.7).target_token(context, logits, 9) == expected


def test_temperature_zero_is_greedy():
    logits = torch.tensor([0.1, 3.0, 2.9])
    assert KeyedSampling(0.0, top_k=1, top_p=0.1).target_token(Context([0]), logits, 5) == 1


def test_top_k_of_one_and_a_tiny_top_p_leave_only_the_best():
    logits = torch.tensor([0.1, 1.0, 0.9])
    for verifier in (KeyedSampling(1.0, top_k=1), KeyedSampling(1.0, top_p=0.01)):
        assert {verifier.target_token(Context([0]), logits, position) for position in range(50)} == {1}
