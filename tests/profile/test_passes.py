"""Passes are timed hot, over their tokens and behind their prefix; all is measured in turns.

Each is taken once a round, in an order of its own, so that a disturbance meets any of them.
"""

from collections import Counter
from itertools import groupby
from types import SimpleNamespace

import numpy as np
import pytest

from specexp.config import load_config
from specexp.core.language_model import LanguageModel
from specexp.drafters import DraftModel
from specexp.profile.measure import TimedDecoding, measure
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


class NotedModel(FakeCausalLM):
    """Notes how many rows it was fed, and behind how many tokens."""

    def __init__(self) -> None:
        super().__init__(lambda tokens: [0.0] * 12, 12)
        self.fed: list[tuple[int, int]] = []

    def forward(self, input_ids, position_ids=None, attention_mask=None, **kwargs):
        rows = input_ids.shape[1]
        if attention_mask is not None:  # not in the self-check
            self.fed.append((attention_mask.shape[-1] - rows, rows))
        return super().forward(input_ids, position_ids, attention_mask, **kwargs)


def test_a_target_pass_feeds_a_tree_after_a_prefix_that_grows_as_in_decoding():
    model = NotedModel()
    timed = TargetPass(LanguageModel(model), TEXT)
    for prefix in (9, 4, 12):  # in any order
        timed.prepare(prefix)
        model.fed.clear()
        assert all(timed.seconds(tokens) > 0 for tokens in (1, 2, 7, 20))
        assert model.fed == [(prefix, 1), (prefix + 1, 2), (prefix + 2, 7), (prefix + 3, 20)]
    shape = timed.tree(20).shape
    assert (shape.max_depth, max(map(len, shape.children))) == (2, 4)


def test_a_pass_of_several_lanes_feeds_each_as_many_rows_after_the_prefix():
    model = NotedModel()
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
    model = NotedModel()
    timed = DraftPass(DraftModel(model), TEXT)
    for prefix in (9, 4, 12):
        timed.prepare(prefix)
        model.fed.clear()
        assert all(timed.seconds(tokens) > 0 for tokens in (1, 2, 7, 20, 1))
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


def test_passes_cost_as_much_as_in_a_running_loop_and_sizes_take_turns_in_changing_orders():
    timed, orders = ColdPass(), set()
    samples = PassSamples(timed, [3, 6], [1, 4, 16])
    for block in (block for repetition in range(4) for block in samples.blocks(repetition)):
        timed.taken.clear()
        block()
        order = tuple(rows for rows, _ in groupby(timed.taken) if rows)
        assert sorted(order) == [1, 4, 16]
        orders.add(order)
    assert len(orders) > 2
    assert {(point.prefix, point.tokens): point.ms for point in samples.points()} == pytest.approx(
        {(prefix, rows): rows for prefix in (3, 6) for rows in (1, 4, 16)}
    )
    assert all(len(taken) == 4 for taken in samples.milliseconds.values())


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
    with pytest.raises(ValueError, match=r"max_tokens must be lower to fit a context of 4 tokens, got 128"):
        longest_prefix(4, 128)


def test_the_interval_of_a_median_holds_it():
    values = np.random.default_rng(0).lognormal(size=31)
    middle, low, high = median_interval(values)
    assert low < middle == np.median(values) < high
    assert median_interval(np.array([3.0, 3.0])) == (3.0, 3.0, 3.0)


PROMPTS = [SimpleNamespace(token_ids=(5, 6, number)) for number in range(4)]


class NotedPass(TimedPass):
    def __init__(self, name, notes):
        super().__init__(np.zeros(1, dtype=np.int64), 8)
        self.name, self.notes = name, notes

    def prepare(self, prefix):
        self.notes.append((self.name, prefix))

    def seconds(self, tokens):
        return tokens / 1e3


class NotedArm(TimedDecoding):
    def __init__(self, name, notes):
        super().__init__()
        self.name, self.notes = name, notes

    def decode(self, prompt, max_new_tokens):
        self.notes.append((self.name, prompt.token_ids[-1]))

    def warm_up(self, prompt, max_new_tokens):
        pass


def test_every_round_takes_each_pass_and_every_prompt_each_arm_once_in_changing_orders(experiment):
    config = load_config(experiment(profile={"repeats": 5, "prompts": 4, "max_new_tokens": 12}))
    passes: list[tuple[str, int]] = []
    arms: list[tuple[str, int]] = []
    samples = [PassSamples(NotedPass(name, passes), [8, 64], [1]) for name in ("one", "two", "bound")]
    measure(
        config.profile,
        config.generation.seed,
        samples,
        [NotedArm(name, arms) for name in ("first", "second", "third")],
        PROMPTS,
    )

    warm, rounds = passes[:6], [passes[start : start + 6] for start in range(6, len(passes), 6)]
    assert len(rounds) == 5
    assert all(Counter(one) == Counter(warm) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    decoded = [arms[start : start + 3] for start in range(0, len(arms), 3)]
    assert [{prompt for _, prompt in one} for one in decoded] == [{0}, {1}, {2}, {3}]
    assert all({name for name, _ in one} == {"first", "second", "third"} for one in decoded)
    assert len({tuple(name for name, _ in one) for one in decoded}) > 1
    assert all(len(taken) == 5 for one in samples for taken in one.milliseconds.values())
