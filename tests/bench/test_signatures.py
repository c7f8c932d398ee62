"""A wrong draft is named by its acceptance by position, and a healthy one never is."""

import dataclasses

import numpy as np
import pytest
from helpers.examples import examples
from helpers.made_records import record
from hypothesis import given, strategies as st

from specexp.bench.signatures import LEAST, likely_cause, likely_causes
from specexp.builders import Chain
from specexp.core.loop import Decoder
from specexp.drafters import DraftModel
from specexp.report.comparison import acceptance_table
from specexp.testing.fakes import hashed_model

STEPS = 1000
SIGNATURES = {
    "another pair": ((0.005, 0.0, 0.0), "as by chance: the draft belongs to another target"),
    "another rotary embedding": ((0.08, 0.1, 0.1), "rotary embeddings, a prompt template or layers that differ"),
    "one layer applied again": ((0.7, 0.1, 0.1), "goes on from wrong states"),
    "sliding layers as full attention": ((0.7, 0.75, 0.01), "sliding attention runs as full attention"),
}
"""Acceptance of each position after an accepted one, and a part of the sentence."""


@pytest.mark.parametrize(("rates", "cause"), SIGNATURES.values(), ids=SIGNATURES)
def test_each_mistake_has_its_sentence(rates, cause):
    accepted = [int(STEPS * share) for share in np.cumprod(rates)]
    found = likely_cause([STEPS] * len(rates), accepted)
    assert cause in found
    assert "\n" not in found


def test_the_sentence_gives_the_figures():
    assert likely_cause([500], [2]).startswith("0.4 % of 500 first drafts are accepted, as by chance")
    assert likely_cause([1000] * 2, [800, 80]).startswith(
        "10 % of the drafts that were accepted up to position 1 are accepted at position 2 too: the draft goes on"
    )


def test_acceptance_that_falls_with_the_prompt_is_found_whatever_the_order():
    lengths = [(100 + n, 40, 30) for n in range(10)] + [(3000 + n, 40, 8) for n in range(10)]
    found = likely_cause([800], [380], lengths)
    assert found == likely_cause([800], [380], lengths[::-1])
    assert "75 % of the steps of short prompts (median 104 tokens) and in 20 % of long ones (3,004)" in found
    assert likely_cause([800], [380], [(length // 10, *rest) for length, *rest in lengths]) is None  # all are short


def test_few_steps_are_not_judged():
    assert likely_cause([LEAST - 1] * 3, [0, 0, 0]) is None
    assert likely_cause([300] * 2, [90, 0]) is None  # 90 accepted positions say little of the second
    assert likely_cause([], []) is None


def test_only_the_first_position_of_a_tree_is_judged():
    assert likely_cause([600] * 2, [480, 48]) is not None
    assert likely_cause([600] * 2, [480, 48], chain=False) is None
    assert likely_cause([600] * 2, [1, 0], chain=False) is not None


def test_drafts_that_end_early_are_not_judged_by_later_positions():
    assert likely_cause([600, 60], [480, 48]) is None


@examples(300)
@given(
    st.integers(0, 10**6),
    st.integers(20, 5000),
    st.floats(0.25, 0.98),
    st.floats(0.7, 1.15),
    st.integers(1, 10),
    st.booleans(),
)
def test_a_healthy_curve_raises_no_alarm(seed, steps, first, slope, positions, chain):
    """Geometric, or steadily falling or rising; prompts of all lengths are accepted alike."""
    generator = np.random.default_rng(seed)
    accepted, left = [], steps
    for position in range(positions):
        left = generator.binomial(left, min(first * slope**position, 0.98))
        accepted.append(left)
    lengths = [(int(length), steps, generator.binomial(steps, first)) for length in generator.integers(10, 5000, 20)]
    assert likely_cause([steps] * positions, accepted, lengths, chain) is None


@pytest.mark.variants(1)
@pytest.mark.parametrize(("draft", "wrong"), [(hashed_model(200), False), (hashed_model(200, seed=7), True)])
def test_a_draft_of_another_pair_is_found_by_decoding(draft, wrong):
    decoder = Decoder(hashed_model(200), DraftModel(draft), Chain(3))
    result = decoder.generate([1, 2], max_new_tokens=600 if not wrong else 200, seed=0)
    cause = likely_cause(result.drafted_at, result.accepted_at)
    assert (cause is not None and "another target" in cause) == wrong


def drafted(arm, prompt, passes, accepted):
    made = record(arm, prompt, steps=200, draft_passes=passes, drafted_nodes=400)
    return dataclasses.replace(made, drafted_at=(200, 200), accepted_at=accepted)


RECORDS = [
    drafted(arm, prompt, passes, accepted)
    for prompt in range(2)
    for arm, passes, accepted in (("wrong", 400, (1, 0)), ("healthy", 400, (140, 98)), ("lookup", 0, (1, 0)))
]


def test_only_drafts_of_a_model_are_judged():
    """Prompt lookup may find nothing in an honest text."""
    assert list(likely_causes(RECORDS)) == ["wrong"]
    failed = dataclasses.replace(RECORDS[0], error="out of memory", draft_passes=0)
    assert likely_causes([failed]) == {}


def test_the_table_of_positions_names_the_cause():
    (note, cause) = acceptance_table(RECORDS).notes
    assert cause.startswith("wrong: 0.5 % of 400 first drafts are accepted, as by chance")
    assert acceptance_table(RECORDS[1:3]).notes == [note]
