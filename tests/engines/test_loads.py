"""Draft lengths by load, chosen from answers under several loads, and their forms in engines."""

import pytest
from helpers.made_records import record
from hypothesis import given, strategies as st

from specexp.artifacts.validation import validated
from specexp.controllers import DraftLengths
from specexp.core.context import Context
from specexp.engines.loads import forms_of, lengths_by_load
from specexp.engines.settings import VllmSettings

NGRAM = {"method": "ngram", "prompt_lookup_max": 3}
ARMS = {"short": {**NGRAM, "num_speculative_tokens": 1}, "long": {**NGRAM, "num_speculative_tokens": 8}}
LOADS = [1, 4, 8]
SPEEDS = {"short": (1.5, 1.25, 0.9), "long": (2.0, 1.0, 0.5), "other": (9.0, 9.0, 9.0)}
"""Over plain decoding, by load."""


def records(speeds):
    return [
        record(arm, prompt, decode_seconds=(1 + prompt / 100 * (arm != "plain")) / speed, sample=sample)
        for prompt in range(6)
        for arm, own in {"plain": (1.0, 1.0, 1.0), **speeds}.items()
        for sample, speed in enumerate(own)
    ]


def test_each_load_gets_the_fastest_length_or_none_where_none_is_faster() -> None:
    speeds = {name: SPEEDS[name] for name in ARMS}
    assert lengths_by_load(records(speeds), ARMS, "long", LOADS) == {1: 8, 2: 1, 5: 0}


def test_arms_that_differ_in_more_than_the_length_are_left_out() -> None:
    arms = {**ARMS, "other": {"method": "suffix", "num_speculative_tokens": 4}}
    assert lengths_by_load(records(SPEEDS), arms, "long", LOADS) == {1: 8, 2: 1, 5: 0}
    assert lengths_by_load(records(SPEEDS), arms, "other", LOADS) == {1: 4, 2: 4, 5: 4}


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.integers(1, 9))
def test_all_forms_are_one_table(lengths, requests) -> None:
    table = dict(zip((1, 2, 5), lengths, strict=True))
    forms, drafted = forms_of(table, 8), lengths[0] if requests < 2 else lengths[1 + (requests > 4)]
    vllm = validated(VllmSettings, {**NGRAM, **forms["vllm"]}, "here")
    rows = vllm.num_speculative_tokens_per_batch_size
    assert [row[2] for row in rows if row[0] <= min(requests, 8) <= row[1]] == [drafted]
    assert max(row[2] for row in rows) <= vllm.num_speculative_tokens
    context = Context([1])
    context.lanes = requests
    assert DraftLengths(**forms["specexp"]["init_args"]).plan(context).max_nodes == drafted
    assert max(forms["trtllm"]["draft_len_schedule"].values()) <= forms["trtllm"]["max_draft_len"]


@pytest.mark.parametrize("most", [8, 16])
def test_vllms_ranges_reach_the_largest_load(most) -> None:
    assert forms_of({1: 4, 2: 0}, most)["vllm"]["num_speculative_tokens_per_batch_size"][-1] == [2, most, 0]
