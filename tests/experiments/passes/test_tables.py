"""The tables of a contest follow from its times: ratios by round, shares outside passes."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments.passes.contest import DECODE, Contest
from experiments.passes.steps import SplitTiming
from experiments.passes.tables import paired, passes_table, points_table, report, steps_table
from specexp.profile.check import checks_of
from specexp.profile.measure import TimedBackend
from specexp.profile.passes import PassSamples, TimedPass

pytestmark = pytest.mark.unit


class MadePass(TimedPass):
    """Takes the milliseconds that a formula says."""

    def __init__(self, ms, prefix_ms=0.0):
        super().__init__(np.zeros(1, dtype=np.int64), 8)
        self.ms, self.prefix_ms, self.prefix = ms, prefix_ms, 0

    def prepare(self, prefix):
        self.prefix = prefix

    def seconds(self, tokens):
        return (self.ms(tokens) + self.prefix_ms * self.prefix) / 1e3


def samples(ms, prefix_ms=0.0):
    made = PassSamples(MadePass(ms, prefix_ms), (8, 64, 512), (1, 4, 16))
    for repetition in range(3):
        for block in made.blocks(repetition):
            block()
    return made


def arm(name, seconds, in_passes, new_tokens=1, nodes=0):
    """Two prompts of three steps; the second one's take twice as long."""
    answers = [[SplitTiming(1 + nodes, (), new_tokens, 9, seconds * by, in_passes * by, 0.0)] * 3 for by in (1, 2)]
    steps = [step for answer in answers for step in answer]
    return SimpleNamespace(arm=SimpleNamespace(name=name), answers=answers, steps=steps)


@pytest.fixture
def contest():
    eager = TimedBackend(
        None,
        ("bfloat16", "float32"),
        {"target": samples(lambda rows: 8.0), "draft": samples(lambda rows: 2.0)},
        [arm("plain decoding", 0.010, 0.008), arm("a tree", 0.018, 0.009, 3, 16)],
        "eager",
    )
    llama = TimedBackend(
        None,
        ("bfloat16", None),
        {
            "target": samples(lambda rows: 1.0 + 0.1 * rows, prefix_ms=0.01),
            DECODE: samples(lambda rows: 0.5 + 0.05 * rows, prefix_ms=0.005),
        },
        [arm("plain decoding", 0.002, 0.0015), arm("a tree", 0.008, 0.006, 2, 16)],
        "llama.cpp",
    )
    loop = SimpleNamespace(name="a loop", answers=[[0.001] * 4, [0.0015] * 4])
    return Contest([eager, llama], [loop], ["openvino is left out: it is not installed"])


def cell(table, row, title):
    return row[[column.title for column in table.columns].index(title)]


def test_a_ratio_is_taken_round_by_round_and_a_round_that_lacks_one_is_left_out():
    found = paired([1.0, 4.0, 9.0, None], [2.0, 4.0, 4.5, 1.0])
    assert found.ratio == pytest.approx(1.0)  # a half, one, and two
    assert found.low < 1 < found.high
    assert (found.n, found.left_out) == (3, 1)
    assert paired([None], [1.0]).refused


def test_steps_have_the_time_outside_passes_and_speeds_over_both_plain_decodings(contest):
    table = steps_table(contest)
    rows = {(row[0], row[1]): row for row in table.rows}
    assert "a loop has the fastest plain decoding." in table.notes
    tree = rows["eager", "a tree"]
    assert cell(table, tree, "step") == pytest.approx(27.0)  # half of them take 18 ms, half 36
    assert table.rows[0][5:7] == [pytest.approx(3.0), pytest.approx(0.2)]  # 2 and 4 ms beside 8 and 16
    assert cell(table, tree, "tokens/step") == 3
    assert cell(table, tree, "speed over its plain").ratio == pytest.approx(10 / 6)
    assert cell(table, tree, "over the fastest plain").ratio == pytest.approx((1 / 6 * 1.5 / 12) ** 0.5)
    assert cell(table, rows["eager", "plain decoding"], "speed over its plain") is None
    assert cell(table, rows["a loop", "plain decoding"], "over the fastest plain").ratio == 1


def test_passes_are_shown_after_the_middle_prefix(contest):
    table = passes_table(contest)
    first, *_, last = table.rows
    assert cell(table, first, "llama.cpp target") == pytest.approx(1.1 + 0.64)
    assert cell(table, last, f"llama.cpp {DECODE}") == pytest.approx(1.3 + 0.32)
    assert len(points_table(contest).rows) == 4 * 9


def test_a_report_names_left_out_backends_and_each_backends_requests(contest):
    checks = checks_of(["eager plain decoding"], np.array([[[20.0, 10.0]]]))
    told = report(contest, checks, [])
    assert next(iter(told.tables)) == "check"
    assert told.answer.startswith("The profile differs from live decoding by more than 10 %: it predicts eager plain")
    assert told.sentences == ["openvino is left out: it is not installed"]
    assert told.summary == {"eager/plain_step_ms": pytest.approx(15.0), "llama.cpp/plain_step_ms": pytest.approx(3.0)}
    ratios = {(what, other): found.ratio for what, other, found in told.tables["ratios"].rows}
    assert ratios["a plain step of llama.cpp", "a step of a loop"] == pytest.approx((2 * 4 / 1.5) ** 0.5)
    assert ratios["a draft pass of eager", "its target pass"] == pytest.approx(0.25)
    assert ratios["a pass of 16 rows of llama.cpp", "of one row"] == pytest.approx(3.24 / 1.74)
    assert ratios["a tree pass of 4 rows of llama.cpp", DECODE] == pytest.approx(2.04 / 1.02)
    assert ("a tree pass of 4 rows of eager", DECODE) not in ratios
