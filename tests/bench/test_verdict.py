"""Verdicts from planted times: no clock is read, so every number is known."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.made_records import PHASES, record

from experiments.calibration import names_a_winner
from specexp.bench.arm import LearningArm, in_loops
from specexp.bench.measuring import decoded_again
from specexp.bench.statistics import DISTURBED, Speedup, paired_speedup, summarize
from specexp.bench.verdict import SpeedVerdict, left_out_sentence, prompts_needed, verdict_of, verdict_sentence
from specexp.core.parts import Parts
from specexp.sweep.plain_seconds import seconds_per_token
from specexp.verifiers import Greedy

pytestmark = pytest.mark.unit
TOKENS = 40


class TimedArm(LearningArm):
    """An arm that takes a planted time: ``seconds(prompt, attempt)`` a step."""

    def __init__(self, name, seconds, tokens_per_step=1):
        super().__init__(name, Parts(verifier=Greedy()), SimpleNamespace(max_new_tokens=TOKENS))
        self.seconds, self.tokens_per_step, self.attempts = seconds, tokens_per_step, {}

    def decode(self, prompt, sample=0, max_new_tokens=None):
        number = int(prompt.prompt_id[1:])
        attempt = self.attempts[number] = self.attempts.get(number, -1) + 1
        steps = TOKENS // self.tokens_per_step
        taken = steps * self.seconds(number, attempt)
        drafted = 0 if self.tokens_per_step == 1 else steps
        found = record(self.name, number, taken, token_ids=tuple(range(TOKENS)), steps=steps)
        return replace(found, seconds={phase: taken / len(PHASES) for phase in PHASES}, drafted_nodes=drafted)


def measured(plain, ours, prompts=24, tokens_per_step=1):
    """Return the records of a run with these arms, with deviating prompts decoded again."""
    return measured_by([TimedArm("plain", plain), TimedArm("ours", ours, tokens_per_step)], prompts)


def measured_by(arms, prompts=24):
    asked = [SimpleNamespace(prompt_id=f"p{number}") for number in range(prompts)]
    records = [arm.decode(prompt) for prompt in asked for arm in arms]
    return decoded_again(arms, asked, records)


def speedup_of(*given, **settings):
    return paired_speedup(measured(*given, **settings), "ours", "plain")


def noisy(generator, step, spread=0.03):
    return lambda number, attempt: step * math.exp(generator.normal(0, spread))


def of(ratio, spread, n, **given):
    logs = math.log(ratio) + spread * np.resize([-1.0, 1.0], n)
    return replace(Speedup.of("ours", "plain", logs, "measured"), **given)


@pytest.mark.parametrize(
    ("speedup", "verdict"),
    [
        (of(1.5, 0.1, 8), SpeedVerdict.FASTER),
        (of(1.02, 0.01, 24), SpeedVerdict.FASTER),
        (of(1.0, 0.02, 24), SpeedVerdict.NOT_FASTER),
        (of(0.7, 0.1, 8), SpeedVerdict.NOT_FASTER),
        (of(1.1, 0.5, 8), SpeedVerdict.CANNOT_TELL),
        (of(9.0, 0.0, 3), SpeedVerdict.CANNOT_TELL),  # fewer than four prompts tell nothing
        (Speedup.refuse("ours", "plain", "why"), SpeedVerdict.CANNOT_TELL),
    ],
)
def test_the_interval_decides_between_three_verdicts(speedup, verdict):
    assert verdict_of(speedup) is verdict


def test_the_smallest_gain_worth_having_is_the_files():
    speedup = of(1.04, 0.05, 8)
    assert verdict_of(speedup, 1.05) is SpeedVerdict.CANNOT_TELL
    assert verdict_of(speedup, 1.2) is SpeedVerdict.NOT_FASTER


@pytest.mark.parametrize("ratio", [1.2, 1.04, 0.98])
def test_the_stated_number_of_prompts_gives_a_verdict_in_four_of_five_runs(ratio):
    generator, spread = np.random.default_rng(0), 0.4
    n = prompts_needed(of(ratio, spread * math.sqrt(7 / 8), 8))
    logs = generator.normal(math.log(ratio), spread, (100, n))
    found = [verdict_of(Speedup.of("ours", "plain", row, "measured")) for row in logs]
    assert sum(one is not SpeedVerdict.CANNOT_TELL for one in found) >= 70


def test_an_open_verdict_has_the_number_of_prompts_that_closes_it():
    text = verdict_sentence("trial 3", of(1.04, 0.3, 8))
    needed = prompts_needed(of(1.04, 0.3, 8))
    assert text.startswith("Cannot tell yet whether trial 3 is faster than plain decoding: 1.04x [")
    assert text.endswith(f"on 8 prompts; about {needed:,} would tell.")


def test_the_stated_number_includes_prompts_that_are_left_out():
    needed = prompts_needed(of(1.04, 0.3, 8))
    assert prompts_needed(of(1.04, 0.3, 8, disturbed=2, left_out=6)) == 2 * needed
    assert prompts_needed(of(9.0, 0.0, 2, left_out=2)) == 16


def test_more_than_ten_thousand_prompts_are_not_proposed():
    assert prompts_needed(of(1.02, 2.0, 8)) is None
    assert verdict_sentence("a", of(1.02, 2.0, 8)).endswith("; more than 10,000 would be needed.")


def test_no_number_of_prompts_closes_a_refused_comparison():
    assert prompts_needed(Speedup.refuse("ours", "plain", "why")) is None


def test_the_best_of_equal_arms_is_named_faster_in_few_runs():
    generator, named = np.random.default_rng(3), 0
    for _ in range(100):
        logs = generator.normal(0, 0.1, (12, 24))
        named += any(Speedup.of("a", "plain", row, "measured", among=12).is_faster for row in logs)
    assert named <= 100 * 0.05


def test_a_speedup_beyond_its_tokens_per_step_never_counts():
    slow = lambda number, attempt: 3.0 if number % 4 == 0 else 1.0  # noqa: E731
    speedup = speedup_of(slow, lambda *at: 1.1, tokens_per_step=2)
    assert (speedup.n, speedup.disturbed) == (18, 6)
    assert speedup.ratio == pytest.approx(2 / 1.1)
    assert (text := left_out_sentence("ours", speedup)) == (f"ours: 6 of 24 prompts do not count: 6 with {DISTURBED}.")
    assert "with times that are faster than the tokens per step allow, or not repeatable" in text


def test_a_disturbed_prompt_is_decoded_again_and_then_counts():
    once = lambda number, attempt: 3.0 if number % 4 == 0 and not attempt else 1.0  # noqa: E731
    speedup = speedup_of(once, lambda *at: 1.1, tokens_per_step=2)
    assert (speedup.n, speedup.disturbed, speedup.ratio) == (24, 0, pytest.approx(2 / 1.1))


class LoopingArm(TimedArm):
    """An arm that spends the second half of its steps and seconds in a repetition."""

    def decode(self, *given, **more):
        found = super().decode(*given, **more)
        half = {"loop_tokens": TOKENS // 2, "loop_steps": found.steps // 2}
        return replace(found, **half, loop_seconds=found.decode_seconds / 2)


def test_new_times_replace_those_of_the_repetition_too():
    once = lambda number, attempt: 3.0 if number % 4 == 0 and not attempt else 1.0  # noqa: E731
    arms = [LoopingArm("plain", once), LoopingArm("ours", lambda *at: 1.1, 2)]
    speedup = paired_speedup(measured_by(arms), "ours", "plain")
    assert (speedup.n, speedup.disturbed, speedup.ratio) == (24, 0, pytest.approx(2 / 1.1))


def test_left_out_samples_are_counted_by_prompt():
    seconds = {"plain": np.ones(24), "ours": np.resize([0.95, 1.05], 24)}
    seconds["ours"][:3] = 0.5  # all samples of the first prompt are too fast
    seconds["ours"][[3, 4, 6]] = 1.2  # the other end has samples of two prompts, but not all of them
    records = [
        record(arm, n // 3, float(taken[n]), sample=n % 3, seconds={"target": 1.0})
        for arm, taken in seconds.items()
        for n in range(24)
    ]
    speedup = paired_speedup(records, "ours", "plain")
    assert (speedup.n, speedup.disturbed, speedup.mirrored, speedup.measured) == (7, 1, 0, 8)


def test_a_prompts_own_cost_repeats_and_counts():
    wide = lambda number, attempt: 1.8 if number == 5 else 1.1  # noqa: E731
    speedup = speedup_of(lambda *at: 1.0, wide, tokens_per_step=2)
    assert (speedup.n, speedup.disturbed) == (24, 0)


@pytest.mark.parametrize("gain", [0.9, 1.0, 1.25])
def test_a_hold_up_of_every_third_prompt_changes_no_verdict(gain):
    """40 steps of 20 ms; 300 ms are 38 % of a prompt."""
    verdicts = []
    for held in (0.0, 0.3):

        def ours(number, attempt, held=held):
            return 0.02 / gain + (held / TOKENS if number % 3 == 0 and attempt == 0 else 0.0)

        verdicts.append(verdict_of(speedup_of(lambda *at: 0.02, ours)))
    assert verdicts[0] is verdicts[1]


def test_a_gain_of_ten_percent_on_24_prompts_is_found_in_nine_of_ten_runs():
    generator, found = np.random.default_rng(0), 0
    for _ in range(20):
        # two tokens a step, and a pass that costs 2 / 1.1 plain ones
        ours = noisy(generator, 2 / 1.1, 0.08)
        found += speedup_of(noisy(generator, 1.0, 0.08), ours, tokens_per_step=2).is_faster
    assert found >= 18


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.02, 0.05, 0.1, 0.2])
def test_plain_decoding_differs_from_itself_in_few_runs(spread):
    generator, different = np.random.default_rng(7), 0
    for _ in range(200):
        speedup = speedup_of(noisy(generator, 1.0, spread), noisy(generator, 1.0, spread))
        different += speedup.refused is None and not speedup.low <= 1 <= speedup.high
    assert different <= 200 * 0.06


def test_a_search_over_equal_candidates_rarely_has_a_winner():
    generator = np.random.default_rng(0)
    assert sum(names_a_winner(generator, 0.05, 0.0) for _ in range(5)) == 0


def test_noise_that_reaches_the_impossible_is_left_out_at_both_ends():
    generator = np.random.default_rng(1)
    speedup = speedup_of(noisy(generator, 1.0, 0.07), noisy(generator, 1.0, 0.07))
    assert speedup.disturbed == speedup.mirrored > 0
    assert speedup.n == 24 - 2 * speedup.mirrored
    assert "at the other end, for balance" in left_out_sentence("ours", speedup)


def test_a_run_in_which_noise_reaches_the_impossible_has_no_verdict():
    generator = np.random.default_rng(7)
    speedup = speedup_of(noisy(generator, 1.0, 0.3), noisy(generator, 1.0, 0.3))
    assert str(speedup.refused).startswith("nothing can be concluded: the machine was too busy: ")
    assert verdict_of(speedup) is SpeedVerdict.CANNOT_TELL


def looped(arm, number, steps, seconds, text=10):
    """Return an answer of ``text`` tokens and then 30 copies of one, whose steps take half a second each."""
    tokens = (*range(100, 100 + text), *[7] * 30)
    loop = in_loops([tokens], [*steps, *[(5, 0.5)] * 6], seconds)
    given = {"decode_tokens": len(tokens), "steps": len(steps) + 6}
    return record(arm, number, seconds, token_ids=tokens, **given, **loop)


def test_tokens_of_a_repetition_count_in_no_arms_speed():
    plain = [looped("plain", number, [(1, 1.0)] * 10, 10.0 + 6 * 0.5) for number in range(4)]
    ours = [looped("ours", number, [(2, 1.0)] * 5, 5.0 + 6 * 0.5) for number in range(4)]
    speedup = paired_speedup([*plain, *ours], "ours", "plain")
    assert speedup.ratio == pytest.approx(2.0)  # 10 tokens in 10 s against 10 tokens in 5 s
    assert summarize(ours, "ours").tokens_per_step == 2.0
    assert ours[0].tokens_per_step == 2.0


def test_nothing_is_concluded_if_the_median_answer_is_a_repetition():
    records = [looped(arm, number, [(1, 1.0)], 4.0, text=1) for arm in ("plain", "ours") for number in range(9)]
    speedup = paired_speedup(records, "ours", "plain")
    assert not speedup.is_faster
    assert verdict_sentence("ours", speedup) == "Nothing can be concluded: 9 of 9 answers repeat one token."


def test_a_prompt_without_speed_is_refused_with_the_reason():
    records = [looped("plain", 0, [], 3.0, text=0)]
    with pytest.raises(ValueError, match=r"^it has no speed, since 1 of 1 answer repeats one token; if others repeat"):
        seconds_per_token(records)
