"""Outputs may part at near ties of a low precision, and nowhere else."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.tiny_pair import tiny_llama

from specexp import Decoder
from specexp.bench.arm import Generation
from specexp.bench.decoder_arm import DecoderArm
from specexp.bench.equality import compare, first_difference
from specexp.builders import TokenRecyclingTree
from specexp.core.context import Context
from specexp.drafters import TokenRecycling
from specexp.verifiers import Greedy, KeyedSampling

GENERATION = Generation(max_new_tokens=12, stop_at_eos=False)


def test_first_difference():
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 5, 3), (1, 2, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2
    assert first_difference((), (1,)) == 0


def changed(record, index, token):
    tokens = list(record.token_ids)
    tokens[index] = token
    return dataclasses.replace(record, arm="other", token_ids=tuple(tokens))


def scores_at(arm, prompt, index):
    """``[V]`` logits of plain decoding for the token at ``index``, and the position."""
    seen = []
    arm.decode_observed(prompt, 0, lambda outcome: seen.append(outcome.logits[0].float().clone()))
    return seen[index].numpy()


@pytest.mark.parametrize("turn", [0, 1])
def test_the_gap_is_that_of_plain_decoding_at_the_first_difference(target, tokenizer, prompts, turn):
    arm = DecoderArm("engine", Decoder(target), tokenizer, GENERATION)
    reference = arm.decode(prompts[1])
    index = 12 * turn + 5
    logits = np.sort(scores_at(arm, prompts[1], index))
    found = compare(changed(reference, index, 0), reference, arm, prompts[1]).difference
    assert found is not None
    assert found.index == index
    assert found.gap == pytest.approx(float(logits[-1] - logits[-2]), abs=1e-5)
    assert not found.near_tie  # float32 is never excused


def test_noise_is_part_of_the_gap(target, tokenizer, prompts):
    temperature = 0.7
    arm = DecoderArm("engine", Decoder(target, verifier=KeyedSampling(temperature)), tokenizer, GENERATION)
    reference = arm.decode(prompts[0])
    verifier = KeyedSampling(temperature)
    context = Context(prompts[0].token_ids, sequence="p0#0")
    position = len(prompts[0].token_ids) + 3
    logits = torch.from_numpy(scores_at(arm, prompts[0], 3))
    scores = np.sort(verifier.noisy_scores(context, logits, position))
    found = compare(changed(reference, 3, 0), reference, arm, prompts[0]).difference
    assert found is not None
    assert found.gap == pytest.approx(temperature * float(scores[-1] - scores[-2]), abs=1e-5)


def test_a_token_beside_the_top_k_cut_is_near(target, tokenizer, prompts):
    arm = DecoderArm("engine", Decoder(target, verifier=KeyedSampling(50.0, top_k=3)), tokenizer, GENERATION)
    reference = arm.decode(prompts[0])
    order = np.argsort(scores_at(arm, prompts[0], 0))[::-1]
    logits = scores_at(arm, prompts[0], 0)
    found = compare(changed(reference, 0, int(order[3])), reference, arm, prompts[0]).difference
    assert found is not None
    assert found.gap is not None
    assert found.gap <= float(logits[order[2]] - logits[order[3]]) + 1e-5


@pytest.mark.parametrize(("dtype", "excused"), [("bfloat16", True), ("float32", False)])
def test_a_near_tie_is_excused_in_low_precision_only(tokenizer, prompts, dtype, excused):
    target = tiny_llama(0, torch.bfloat16)
    with torch.no_grad():
        target.lm_head.weight[40:] = target.lm_head.weight[:8]  # 40 to 47 tie with 0 to 7 exactly
    arm = DecoderArm("engine", Decoder(target), tokenizer, dataclasses.replace(GENERATION, max_new_tokens=40))
    for prompt in prompts:
        reference = dataclasses.replace(arm.decode(prompt), dtype=dtype)
        index = next((i for i, token in enumerate(reference.token_ids) if token < 8), None)
        if index is not None:
            break
    twin = changed(reference, index, reference.token_ids[index] + 40)
    found = compare(twin, reference, arm, prompt).difference
    assert found is not None
    assert (found.gap, found.near_tie) == (0.0, excused)


def test_records_of_another_verifier_or_a_failure_are_not_compared(target, tokenizer, prompts):
    arm = DecoderArm("engine", Decoder(target, verifier=Greedy()), tokenizer, GENERATION)
    reference = arm.decode(prompts[0])
    for other in (
        dataclasses.replace(changed(reference, 0, 0), verifier="KeyedSampling(temperature=1.0)"),
        dataclasses.replace(changed(reference, 0, 0), error="ValueError"),
        dataclasses.replace(changed(reference, 0, 0), keyed=False),
    ):
        assert compare(other, reference, arm, prompts[0]) is other


def test_bfloat16_parts_at_near_ties_only(tokenizer, prompts):
    target = tiny_llama(0, torch.bfloat16)
    verifier = KeyedSampling(0.7)
    plain = DecoderArm("engine", Decoder(target, verifier=verifier), tokenizer, GENERATION)
    decoder = Decoder(target, TokenRecycling(), TokenRecyclingTree(), verifier)
    arm = DecoderArm("tree", decoder, tokenizer, GENERATION)
    for prompt in prompts:
        for sample in range(3):
            reference = plain.decode(prompt, sample)
            found = compare(arm.decode(prompt, sample), reference, plain, prompt).difference
            assert found is None or found.near_tie
