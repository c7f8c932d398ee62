"""The verdict on a speedup: faster, not faster, or cannot tell yet, and the number of prompts that would tell."""

from __future__ import annotations

from enum import StrEnum
from math import ceil, log

from specexp.base.messages import counted
from specexp.bench.statistics import DISTURBED, FEWEST_PROMPTS, NOTHING, Speedup, student

LEAST_GAIN = 1.05
"""Default of ``least_gain``, the smallest speedup worth having."""
POWER = 0.8
"""Chance with which the stated number of prompts leads to a verdict, if the estimate is right."""
MOST_PROMPTS = 10_000


class SpeedVerdict(StrEnum):
    """The verdict on a speedup, from its interval."""

    FASTER = "faster"  # the interval lies above 1
    NOT_FASTER = "not faster"  # the interval excludes a gain worth having
    CANNOT_TELL = "cannot tell yet"  # neither, too few prompts, or no comparison


def verdict_of(speedup: Speedup, least_gain: float = LEAST_GAIN) -> SpeedVerdict:
    """Return the verdict on a speedup; ``least_gain`` is the smallest speedup worth having."""
    if speedup.is_faster:
        return SpeedVerdict.FASTER
    lost = speedup.has_enough and speedup.high < least_gain
    return SpeedVerdict.NOT_FASTER if lost else SpeedVerdict.CANNOT_TELL


def prompts_needed(speedup: Speedup, least_gain: float = LEAST_GAIN) -> int | None:
    """Return how many prompts would give a verdict, if the estimate is right; None if refused or over 10,000.

    They tell the estimate from 1, or from ``least_gain`` if that is farther away, with a chance of 80 %. With too few
    prompts to know their spread, it is twice the minimum. As large a share of them is expected to be left out as now.
    """
    if speedup.refused is not None:
        return None
    n = 2 * FEWEST_PROMPTS
    if speedup.has_enough:
        half = log(speedup.high) - speedup.mean_log_ratio
        lost = speedup.degrees_lost - 1
        deviation = half * speedup.n**0.5 / student(speedup.n - lost, speedup.quantile)
        distance = max(speedup.mean_log_ratio, log(least_gain) - speedup.mean_log_ratio)
        for n in range(FEWEST_PROMPTS, MOST_PROMPTS + 2):
            known = max(n - lost, 2)
            quantiles = student(known, speedup.quantile) + student(known, POWER)
            if quantiles * deviation <= distance * n**0.5:
                break
    needed = ceil(n * speedup.measured / speedup.n)
    return needed if needed <= MOST_PROMPTS else None


def verdict_sentence(
    label: str,
    speedup: Speedup,
    *,
    over: str = "plain decoding",
    least_gain: float = LEAST_GAIN,
) -> str:
    """Return the verdict on the arm ``label`` as a sentence."""
    if speedup.refused is not None and speedup.refused.startswith(NOTHING):
        return f"{speedup.refused.capitalize()}."
    if speedup.refused is not None:
        return f"{label} cannot be compared with {over}: {speedup.refused}."
    verdict = verdict_of(speedup, least_gain)
    if verdict is SpeedVerdict.FASTER:
        return f"{label} decodes {speedup} as fast as {over}."
    if verdict is SpeedVerdict.NOT_FASTER:
        worth = "" if speedup.is_slower else f", and a gain worth having is {least_gain:g}x"
        return f"{label} is {'slower' if speedup.is_slower else 'not faster'} than {over}: {speedup}{worth}."
    needed = prompts_needed(speedup, least_gain)
    prompts = counted(speedup.n, "prompt")
    more = f"more than {MOST_PROMPTS:,} would be needed" if needed is None else f"about {needed:,} would tell"
    if not speedup.has_enough:
        more = f"a verdict needs at least {FEWEST_PROMPTS}"
    return f"Cannot tell yet whether {label} is faster than {over}: {speedup} on {prompts}; {more}."


def left_out_sentence(label: str, speedup: Speedup) -> str:
    """Return a sentence on the prompts left out of a speedup and why; empty if there are none."""
    left = [
        (speedup.disturbed, f"with {DISTURBED}"),
        (speedup.mirrored, "at the other end, for balance"),
        (speedup.left_out, "without a time per token"),
    ]
    whys = "; ".join(f"{number} {why}" for number, why in left if number)
    if not whys or speedup.refused is not None:
        return ""
    number = sum(number for number, _ in left)
    return f"{label}: {number} of {counted(speedup.measured, 'prompt')} do not count: {whys}."
