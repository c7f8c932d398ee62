"""Outputs may part at near ties of a low precision and nowhere else; they are compared once more in float32."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.made_records import record
from helpers.small_models import tiny_llama

from specexp import Decoder
from specexp.bench.arm import Generation
from specexp.bench.equality import (
    InFloat32,
    compare,
    divergence,
    first_difference,
    in_float32,
    near_tie_of,
    near_tie_sentence,
    token_equality,
)
from specexp.bench.live import DecoderArm
from specexp.bench.record import Difference
from specexp.builders import TokenRecyclingTree
from specexp.core.context import Context
from specexp.drafters import TokenRecycling
from specexp.models.pair import ModelPair
from specexp.report.comparison import results_table
from specexp.verifiers import Greedy, KeyedSampling

GENERATION = Generation(max_new_tokens=12, stop_at_eos=False)


@pytest.mark.parametrize(
    ("tokens", "other", "found"),
    [((1, 2, 3), (1, 2, 3), None), ((1, 5, 3), (1, 2, 3), 1), ((1, 2), (1, 2, 3), 2), ((), (1,), 0)],
)
def test_first_difference(tokens, other, found):
    assert first_difference(tokens, other) == found


def changed(record, index, token):
    tokens = list(record.token_ids)
    tokens[index] = token
    return dataclasses.replace(record, arm="other", token_ids=tuple(tokens))


def scores_at(arm, prompt, index):
    """``[V]`` logits of plain decoding for the token at ``index``, and the position."""
    seen = []
    arm.decode_observed(prompt, 0, lambda outcome: seen.append(outcome.logits[0].float().clone()))
    return seen[index].numpy()


def gap_at(arm, prompt, index, token):
    reference = arm.decode(prompt)
    found = compare(changed(reference, index, token), reference, arm, prompt).difference
    assert (found.index, found.near_tie) == (index, False)  # float32 is never excused
    return found.gap


@pytest.mark.parametrize("turn", [0, 1])
def test_the_gap_is_that_of_plain_decoding_at_the_first_difference(target, tokenizer, prompts, turn):
    arm = DecoderArm("plain", Decoder(target), tokenizer, GENERATION)
    logits = np.sort(scores_at(arm, prompts[1], 12 * turn + 5))
    gap = gap_at(arm, prompts[1], 12 * turn + 5, 0)
    assert gap == pytest.approx(float(logits[-1] - logits[-2]), abs=1e-5)


def test_noise_is_part_of_the_gap(target, tokenizer, prompts):
    verifier = KeyedSampling(0.7)
    arm = DecoderArm("plain", Decoder(target, verifier=verifier), tokenizer, GENERATION)
    context = Context(prompts[0].token_ids, sequence="p0#0")
    logits = torch.from_numpy(scores_at(arm, prompts[0], 3))
    noise = context.target_noise(len(prompts[0].token_ids) + 3, 1, logits.numel())
    scores = np.sort(verifier.scores(logits[None], noise)[0].numpy())
    assert gap_at(arm, prompts[0], 3, 0) == pytest.approx(0.7 * float(scores[-1] - scores[-2]), abs=1e-5)


def test_a_token_beside_the_top_k_cut_is_near(target, tokenizer, prompts):
    arm = DecoderArm("plain", Decoder(target, verifier=KeyedSampling(50.0, top_k=3)), tokenizer, GENERATION)
    logits = scores_at(arm, prompts[0], 0)
    order = np.argsort(logits)[::-1]
    gap = gap_at(arm, prompts[0], 0, int(order[3]))
    assert gap <= float(logits[order[2]] - logits[order[3]]) + 1e-5


@pytest.mark.parametrize(("dtype", "excused"), [("bfloat16", True), ("float32", False)])
def test_a_near_tie_is_excused_in_low_precision_only(tokenizer, prompts, dtype, excused):
    target = tiny_llama(0, torch.bfloat16)
    with torch.no_grad():
        target.lm_head.weight[40:] = target.lm_head.weight[:8]  # 40 to 47 tie with 0 to 7 exactly
    arm = DecoderArm("plain", Decoder(target), tokenizer, GENERATION.with_changes(max_new_tokens=40))
    for prompt in prompts:
        reference = dataclasses.replace(arm.decode(prompt), dtype=dtype)
        index = next((i for i, token in enumerate(reference.token_ids) if token < 8), None)
        if index is not None:
            break
    twin = changed(reference, index, reference.token_ids[index] + 40)
    found = compare(twin, reference, arm, prompt).difference
    assert found is not None
    assert (found.gap, found.near_tie) == (0.0, excused)


@pytest.mark.parametrize(
    "given", [{"verifier": "KeyedSampling(temperature=1.0)"}, {"error": "ValueError"}, {"keyed": False}]
)
def test_records_of_another_verifier_or_a_failure_are_not_compared(given):
    other = dataclasses.replace(changed(record("plain", 0), 0, 0), **given)
    assert compare(other, record("plain", 0), None, None) is other


@pytest.mark.slow
def test_bfloat16_parts_at_near_ties_only(tokenizer, prompts):
    target = tiny_llama(0, torch.bfloat16)
    verifier = KeyedSampling(0.7)
    plain = DecoderArm("plain", Decoder(target, verifier=verifier), tokenizer, GENERATION)
    decoder = Decoder(target, TokenRecycling(), TokenRecyclingTree(), verifier)
    arm = DecoderArm("tree", decoder, tokenizer, GENERATION)
    for sample, prompt in enumerate(prompts):
        reference = plain.decode(prompt, sample)
        found = compare(arm.decode(prompt, sample), reference, plain, prompt).difference
        assert found is None or found.near_tie


@pytest.mark.parametrize("best", [0.3, 9.0, 16.0, 31.9, 32.0, -20.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_other_programs_a_near_tie_is_four_spacings_at_the_best_logit(dtype, best):
    size = torch.tensor(abs(best), dtype=dtype)
    spacing = float(torch.nextafter(size, size + 1) - size)
    assert near_tie_of(str(dtype).removeprefix("torch."), best) == 4 * spacing
    assert near_tie_of("float32", best) == 0


@pytest.mark.parametrize(
    ("elsewhere", "spacings", "near"), [(False, 1.0, True), (False, 1.1, False), (True, 4.0, True), (True, 4.1, False)]
)
def test_the_limit_is_wider_where_another_program_decodes(elsewhere, spacings, near, prompts):
    class Scorer:
        parts = SimpleNamespace(verifier=Greedy())

        def place_of(self, prompt, record, index):
            return dataclasses.replace(prompt) if elsewhere else prompt, index

        def decode_observed(self, prompt, sample, observe):
            logits = torch.tensor([[20.0, 20.0 - 0.125 * spacings, 0.0]])
            observe(SimpleNamespace(logits=logits))

    reference = dataclasses.replace(record("plain", 0), dtype="bfloat16")
    found = compare(changed(reference, 0, 0), reference, Scorer(), prompts[0]).difference
    assert found.near_tie == near


PARTED = [
    *(record("plain", n) for n in range(3)),
    *(record("tree", n) for n in range(2)),
    record("tree", 2, token_ids=(5, 6, 7, 9), difference=Difference(3, 0.06, near_tie=True)),
]


@pytest.fixture
def pair(tokenizer):
    return ModelPair(tiny_llama(0, torch.bfloat16), None, tokenizer, "tiny")


@pytest.fixture
def arms_of(tokenizer):
    """Plain decoding and a tree, on whatever pair is given; the arms made are kept in ``arms_of.made``."""

    def make(pair):
        drafter = TokenRecycling(k=8)
        parts = ((), (drafter, TokenRecyclingTree()))
        plain, tree = (
            DecoderArm(name, Decoder(pair.target, *given, verifier=KeyedSampling(0.7)), tokenizer, GENERATION)
            for name, given in zip(("plain", "tree"), parts, strict=True)
        )
        make.made = [plain, tree]
        return plain, [tree]

    return make


def test_outputs_that_parted_at_near_ties_are_equal_in_float32(pair, arms_of, prompts):
    found = in_float32(pair, arms_of, prompts, PARTED, most=3)
    assert [arm.dtype for arm in arms_of.made] == ["float32"] * 2
    assert pair.target.dtype == torch.bfloat16
    assert str(token_equality(found.records, "tree")) == "3/3"
    assert found.sentence(["tree"]) == (
        "In float32, where there are no near ties, 3/3 outputs equal plain decoding's (3 of 8 prompts decoded once "
        "more, outside the clock)."
    )
    table = results_table(PARTED, float32=found)
    row = table.records()[1]
    assert (row["equal in float32"], row["equal outputs"]) == ("3/3", "3/3 (2 equal, 1 near tie)")
    assert near_tie_sentence(PARTED) in table.notes
    assert "rounding of bfloat16 (here at most 0.06 apart, in logits)" in near_tie_sentence(PARTED)
    assert near_tie_sentence(PARTED[:5]) is None
    assert table.notes[-1] == found.sentence(["tree"])
    assert divergence(found.records) is None


def test_only_as_many_prompts_are_decoded_as_the_time_allows(pair, arms_of, prompts, monkeypatch):
    monkeypatch.setattr("specexp.bench.equality.SECONDS", 0.0)
    fast = [dataclasses.replace(one, decode_seconds=0.0) for one in PARTED]
    short = in_float32(pair, arms_of, prompts, fast, most=8)
    assert short.prompts == 1
    assert str(token_equality(short.records, "tree")) == "1/1"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"most": 0}, "float32_prompts is 0"),
        ({"seconds": 1.0}, "one prompt would take about 2 s by plain decoding, but the limit is 1 s"),
        ({}, "a copy of the target takes 0.0 GB, but cpu has 0.0 GB left"),
    ],
)
def test_the_reason_is_stated_if_nothing_was_compared(pair, arms_of, prompts, monkeypatch, given, why):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=10**4))
    monkeypatch.setattr("specexp.bench.equality.SECONDS", given.get("seconds", 15.0))
    found = in_float32(pair, arms_of, prompts, PARTED, given.get("most", 3))
    assert found == InFloat32(left_out=why)
    assert found.sentence(["tree"]) == f"Not compared in float32: {why}."
    assert "equal in float32" not in results_table(PARTED, float32=found).records()[0]


def test_nothing_is_decoded_again_if_no_arm_of_ours_parted_in_16_bit(pair, arms_of, prompts):
    assert in_float32(pair, lambda exact: (arms_of(exact)[0], []), prompts, PARTED, most=3) is None
    exact = [dataclasses.replace(one, dtype="float32") for one in PARTED]
    assert in_float32(pair, arms_of, prompts, PARTED[:5], most=3) is None
    assert in_float32(pair, arms_of, prompts, exact, most=3) is None


def test_a_difference_in_float32_that_no_rounding_makes_is_a_divergence():
    def parted(gap, dtype="float32"):
        return [record("tree", 1, dtype=dtype, difference=Difference(7, gap, near_tie=False))]

    assert divergence(parted(0.5)) == (
        "1 output of tree DIFFER from plain decoding's in float32, where no near tie explains it, e.g. tree on prompt "
        "'p1' from new token 7 on"
    )
    assert divergence(parted(None)) is not None
    assert divergence(parted(1e-7)) is None
    assert divergence(parted(0.5, "bfloat16")) is None
