"""All is measured in turns: each once a round, in an order of its own, so that a disturbance meets any of them."""

from collections import Counter
from types import SimpleNamespace

import numpy as np

from specexp.config import load_config
from specexp.profile.measure import TimedDecoding, measure
from specexp.profile.passes import PassSamples, TimedPass

PROMPTS = [SimpleNamespace(token_ids=(5, 6, number)) for number in range(4)]


class NotedPass(TimedPass):
    """Notes its name and prefix whenever it is made ready."""

    def __init__(self, name, notes):
        super().__init__(np.zeros(1, dtype=np.int64), 8)
        self.name, self.notes = name, notes

    def prepare(self, prefix):
        self.notes.append((self.name, prefix))

    def seconds(self, tokens):
        return tokens / 1e3


class NotedArm(TimedDecoding):
    """Notes which prompts it decodes."""

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
    measure(config, samples, [NotedArm(name, arms) for name in ("first", "second", "third")], PROMPTS)

    warm, rounds = passes[:6], [passes[start : start + 6] for start in range(6, len(passes), 6)]
    assert len(rounds) == 5
    assert all(Counter(one) == Counter(warm) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    decoded = [arms[start : start + 3] for start in range(0, len(arms), 3)]
    assert [{prompt for _, prompt in one} for one in decoded] == [{0}, {1}, {2}, {3}]
    assert all({name for name, _ in one} == {"first", "second", "third"} for one in decoded)
    assert len({tuple(name for name, _ in one) for one in decoded}) > 1
    assert all(len(taken) == 5 for one in samples for taken in one.milliseconds.values())
