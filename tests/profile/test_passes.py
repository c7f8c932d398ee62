"""Passes are timed hot, over the tokens and behind the prefix they are said to be."""

from itertools import groupby
from time import sleep

import numpy as np
import pytest

from specexp.core.language_model import LanguageModel
from specexp.drafters import DraftModel
from specexp.profile.passes import (
    DraftPass,
    PassSamples,
    TargetPass,
    TimedPass,
    longest_prefix,
    median_interval,
    sizes_up_to,
)
from specexp.testing.fakes import FakeCausalLM, hashed_model

TEXT = np.arange(60) % 7


class SlowModel(FakeCausalLM):
    """Takes a while for every token it is fed; it notes what it was fed, and behind how much."""

    def __init__(self, ms_a_token: float = 0.0) -> None:
        super().__init__(lambda tokens: [0.0] * 12, 12)
        self.ms_a_token = ms_a_token
        self.fed: list[tuple[int, int]] = []

    def forward(self, input_ids, position_ids=None, attention_mask=None, **kwargs):
        rows = input_ids.shape[1]
        if attention_mask is not None:  # not alone, as the self-check asks
            self.fed.append((attention_mask.shape[-1] - rows, rows))
        sleep(self.ms_a_token * rows / 1e3)
        return super().forward(input_ids, position_ids, attention_mask, **kwargs)


def test_a_target_pass_feeds_a_tree_behind_a_prefix_that_grows_as_in_decoding():
    model = SlowModel()
    timed = TargetPass(LanguageModel(model), TEXT)
    for prefix in (9, 4, 12):  # in any order
        timed.prepare(prefix)
        model.fed.clear()
        for tokens in (1, 2, 7, 20):
            assert timed.seconds(tokens) > 0
        assert model.fed == [(prefix, 1), (prefix + 1, 2), (prefix + 2, 7), (prefix + 3, 20)]
    shape = timed.tree(20).shape
    assert shape.max_depth == 2
    assert max(len(children) for children in shape.children) == 4


def test_a_pass_of_several_lanes_feeds_each_as_many_rows_behind_the_prefix():
    model = SlowModel()
    runtime = LanguageModel(model)
    timed = TargetPass(runtime, TEXT, lanes=3)
    for prefix in (9, 4):
        timed.prepare(prefix)
        model.fed.clear()
        before = runtime.passes
        assert timed.seconds(7) > 0
        assert (model.fed, runtime.passes) == ([(prefix, 7)], before + 1)
        assert runtime.cache.lengths == [prefix + 1] * 3


def test_a_draft_pass_feeds_as_many_rows_in_one_pass():
    model = SlowModel()
    drafter = DraftModel(model)
    timed = DraftPass(drafter, TEXT)
    for prefix in (9, 4, 12):
        timed.prepare(prefix)
        model.fed.clear()
        for tokens in (1, 2, 7, 20, 1):
            assert timed.seconds(tokens) > 0
        assert model.fed == [(prefix + n, rows) for n, rows in enumerate((1, 2, 7, 20, 1))]


class ColdPass(TimedPass):
    """Half a second for the first eight passes after one of another size or a prefill, then a millisecond a row."""

    def __init__(self):
        super().__init__(TEXT, 7)
        self.taken = []

    def prepare(self, prefix):
        self.taken.append(0)

    def seconds(self, tokens):
        self.taken.append(tokens)
        return tokens / 1e3 if len(self.taken) > 8 and set(self.taken[-9:]) == {tokens} else 0.5


def test_passes_cost_what_they_cost_in_a_running_loop():
    samples = PassSamples(ColdPass(), [3, 6], [1, 4, 16])
    for repetition in range(3):
        for block in samples.blocks(repetition):
            block()
    assert {(point.prefix, point.tokens): point.ms for point in samples.points()} == pytest.approx(
        {(prefix, rows): rows for prefix in (3, 6) for rows in (1, 4, 16)}
    )
    assert all(len(taken) == 3 for taken in samples.milliseconds.values())


def test_blocks_of_all_sizes_take_turns_in_an_order_of_every_repetitions_own():
    timed = ColdPass()
    samples = PassSamples(timed, [3, 6], [1, 2, 3, 4, 5])
    orders = []
    for block in (block for repetition in range(4) for block in samples.blocks(repetition)):
        timed.taken.clear()
        block()
        blocks = [rows for rows, _ in groupby(timed.taken) if rows]
        assert sorted(blocks) == [1, 2, 3, 4, 5]
        orders.append(tuple(blocks))
    assert len(orders) == 8
    assert len(set(orders)) > 4


def test_sizes_end_with_the_budget_and_prefixes_fit_the_context():
    assert sizes_up_to(128) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert sizes_up_to(5) == [1, 2, 3, 4, 5]
    assert sizes_up_to(1) == [1]
    assert sizes_up_to(300) == [*sizes_up_to(128), 192, 256, 300]
    assert longest_prefix(192, 128) == 172
    timed = TargetPass(LanguageModel(hashed_model(7, context_limit=32)), TEXT)
    timed.prepare(longest_prefix(32, 20))
    for _ in range(16):
        assert timed.seconds(20) > 0
    with pytest.raises(ValueError, match=r"max_tokens is 128, for which a context of 4 tokens has no room"):
        longest_prefix(4, 128)


def test_the_interval_of_a_median_holds_it():
    values = np.random.default_rng(0).lognormal(size=31)
    middle, low, high = median_interval(values)
    assert low < middle == np.median(values) < high
    assert median_interval(np.array([3.0, 3.0])) == (3.0, 3.0, 3.0)
