"""Where a 16-bit target has near ties, outputs are compared once more in float32, in which there are none."""

import dataclasses

import pytest
import torch
from helpers.made_records import record
from helpers.tiny_pair import tiny_llama

from specexp import Decoder
from specexp.bench import equality as float32
from specexp.bench.arm import Generation
from specexp.bench.decoder_arm import DecoderArm
from specexp.bench.equality import InFloat32, divergence, in_float32, near_tie_sentence
from specexp.bench.record import Difference
from specexp.bench.report import results_table
from specexp.builders import TokenRecyclingTree
from specexp.drafters import TokenRecycling
from specexp.models.pair import ModelPair
from specexp.verifiers import KeyedSampling

GENERATION = Generation(max_new_tokens=12, stop_at_eos=False)
PARTED = [
    *(record("engine", n) for n in range(3)),
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
        engine, tree = (
            DecoderArm(name, Decoder(pair.target, *given, verifier=KeyedSampling(0.7)), tokenizer, GENERATION)
            for name, given in zip(("engine", "tree"), parts, strict=True)
        )
        make.made = [engine, tree]
        return engine, [tree]

    return make


def test_nothing_is_said_where_no_arm_of_ours_parted(pair, arms_of, prompts):
    assert in_float32(pair, lambda exact: (arms_of(exact)[0], []), prompts, PARTED, most=3) is None


def test_outputs_that_parted_at_near_ties_are_equal_in_float32(pair, arms_of, prompts):
    found = in_float32(pair, arms_of, prompts, PARTED, most=3)
    assert [arm.dtype for arm in arms_of.made] == ["float32"] * 2
    assert pair.target.dtype == torch.bfloat16
    assert str(found.equality("tree")) == "3/3"
    assert found.sentence(["tree"]) == (
        "In float32, where there are no near ties, 3/3 outputs equal plain decoding's (3 of 8 prompts decoded once "
        "more, outside the clock)."
    )
    table = results_table(PARTED, float32=found)
    row = table.records()[1]
    assert (row["equal in float32"], row["equal outputs"]) == ("3/3", "3/3 (2 equal, 1 near tie)")
    assert near_tie_sentence("bfloat16") in table.notes
    assert table.notes[-1] == found.sentence(["tree"])
    assert divergence(found.records) is None


def test_only_as_many_prompts_are_decoded_as_the_time_allows(pair, arms_of, prompts):
    short = in_float32(pair, arms_of, prompts, [one for one in PARTED if one.arm != "engine"] + [
        dataclasses.replace(one, decode_seconds=0.0) for one in PARTED if one.arm == "engine"
    ], most=8, seconds=0.0)  # fmt: skip
    assert short.prompts == 1
    assert str(short.equality("tree")) == "1/1"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"most": 0}, "float32_prompts is 0"),
        (
            {"seconds": 1.0},
            "one prompt would take about 2 s by plain decoding, and all have 1 s",
        ),
    ],
)
def test_why_nothing_was_compared_is_told(pair, arms_of, prompts, given, why):
    found = in_float32(pair, arms_of, prompts, PARTED, **{"most": 3, **given})
    assert found == InFloat32(left_out=why)
    assert found.sentence(["tree"]) == f"Not compared in float32: {why}."
    assert "equal in float32" not in results_table(PARTED, float32=found).records()[0]


def test_a_device_without_room_is_told(pair, arms_of, prompts, monkeypatch):
    monkeypatch.setattr(float32, "_free_bytes", lambda device: 10**4)
    found = in_float32(pair, arms_of, prompts, PARTED, most=3)
    assert found.left_out == "a copy of the target takes 0.0 GB, and cpu has 0.0 GB left"


def test_nothing_is_decoded_again_where_all_are_equal_or_float32_already(pair, arms_of, prompts):
    exact = [dataclasses.replace(one, dtype="float32") for one in PARTED]
    assert in_float32(pair, arms_of, prompts, PARTED[:5], most=3) is None
    assert in_float32(pair, arms_of, prompts, exact, most=3) is None


def test_a_difference_in_float32_that_no_rounding_makes_is_a_divergence():
    def parted(gap, dtype="float32"):
        return [record("tree", 1, dtype=dtype, difference=Difference(7, gap, near_tie=False))]

    assert divergence(parted(0.5)) == (
        "1 output of tree DIFFER from plain decoding's in float32, where no near tie excuses it, e.g. tree on prompt "
        "'p1' from new token 7 on"
    )
    assert divergence(parted(None)) is not None
    assert divergence(parted(1e-7)) is None
    assert divergence(parted(0.5, "bfloat16")) is None
