"""Compares a profile's predictions with live decoding, in time per token and in speedup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from specexp.bench.record import MEASURED
from specexp.bench.statistics import Speedup
from specexp.core.latency import MOST_OFF
from specexp.report.table import Cell, Table, columns

if TYPE_CHECKING:
    from specexp.core.latency import LatencyProfile
    from specexp.data import Prompt
    from specexp.profile.measure import TimedBackend


@dataclass(frozen=True)
class LiveCheck:
    """Compares an arm's time, measured by decoding again after the fit, with the prediction for the same steps."""

    arm: str
    live_ms: float  # milliseconds per token, mean over prompts
    predicted_ms: float  # the profile's prediction of live_ms
    off: Speedup  # predicted / live time, paired by prompt
    predicted: Speedup | None = None  # predicted speedup over plain decoding; None for plain decoding
    live: Speedup | None = None  # measured speedup

    @property
    def error(self) -> float:
        """The larger of the relative errors in predicted time and in predicted speedup."""
        errors = [abs(self.off.ratio - 1)]
        if self.predicted is not None and self.live is not None:
            errors.append(abs(self.predicted.ratio / self.live.ratio - 1))
        return max(errors)

    def __str__(self) -> str:
        time = f"{self.arm} at {self.off} of its live time"
        return time if self.live is None else f"{time} (speedup {self.predicted} predicted, {self.live} live)"


def check_live(
    timed: TimedBackend, profile: LatencyProfile, prompts: Sequence[Prompt], max_new_tokens: int
) -> list[LiveCheck]:
    """Decode all prompts again with each arm, and compare the times with the profile's predictions."""
    arms = timed.arms
    for arm in arms:
        arm.arm.reset()
    with torch.inference_mode():  # as in live runs
        priced = [[arm.priced(prompt, max_new_tokens, profile) for arm in arms] for prompt in prompts]
    ms = np.array(priced)  # [prompts, arms, 2]: predicted and live milliseconds per token
    return checks_of([f"{timed.name} {arm.arm.name}".strip() for arm in arms], ms)


def checks_of(arms: Sequence[str], ms: NDArray[np.float64]) -> list[LiveCheck]:
    """Compare predicted with live milliseconds per token, ``[prompts, arms, 2]``. The first arm is plain decoding."""
    found = []
    for place, name in enumerate(arms):
        predicted, live = ms[:, place].T
        plain = ms[:, 0].T
        speedups = [_paired(plain[clock], ms[:, place, clock]) for clock in (0, 1)] if place else []
        found.append(LiveCheck(name, float(live.mean()), float(predicted.mean()), _paired(predicted, live), *speedups))
    return found


def headline(checks: Sequence[LiveCheck]) -> str:
    """Return a sentence on whether the profile is within 10 % of live decoding, naming each arm that is not."""
    wrong = [str(check) for check in checks if check.error > MOST_OFF]
    return f"{_verdict(checks)}: it predicts {', '.join(wrong)}." if wrong else f"{_verdict(checks)}."


def _verdict(checks: Sequence[LiveCheck]) -> str:
    if any(check.error > MOST_OFF for check in checks):
        return f"The profile differs from live decoding by more than {100 * MOST_OFF:.0f} %"
    return f"The profile is within {100 * MOST_OFF:.0f} % of live decoding"


def check_table(checks: Sequence[LiveCheck]) -> Table:
    """Return the comparison as a table with one row per arm."""
    heads = "arm | live:.3 ms/token | predicted:.3 ms/token | predicted / live:interval"
    rows: list[list[Cell]] = [
        [check.arm, check.live_ms, check.predicted_ms, check.off, check.predicted, check.live] for check in checks
    ]
    note = (
        "Each arm was decoded again after the fit, and the profile predicts the time of the same steps. "
        "Ratios are geometric means over prompts with 95 % intervals."
    )
    speedups = "predicted speedup:interval | live speedup:interval"
    return Table(_verdict(checks), columns(f"{heads} | {speedups}"), rows, [note])


def _paired(longer: NDArray[np.float64], shorter: NDArray[np.float64]) -> Speedup:
    return Speedup.of("", "", np.log(longer / shorter), MEASURED)
