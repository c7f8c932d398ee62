"""Figures of a run's arms on bootstrap resamples of its prompts, the same for every arm, so that ratios are paired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from specexp.bench.metrics import Share, metric_named
from specexp.bench.observers import GRAFTED
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import CONFIDENCE, arm_names, refusal

RESAMPLES = 2_000
Draws = NDArray[np.float64]
"""``[RESAMPLES + 1]`` values of a figure, first on all prompts once."""
COUNTS = (
    *("tokens_per_step", "alpha", "utilisation", "nodes_per_step", "draft_passes_per_step"),
    *("target_utilisation", "eos_share", "loop_share"),
)
OWN: dict[str, Callable[[PromptRecord], Share | None]] = {
    "tokens_per_draft_pass": lambda record: Share(record.new_tokens, record.draft_passes),
    "accepted_per_step": lambda record: Share(record.accepted_drafts, record.steps),
    "drafter_utilisation": lambda record: _ungrafted(record),
}
"""Figures beyond the metrics of a run's tables."""
SPEEDS = ("throughput", "speedup", "end_to_end_throughput", "end_to_end_speedup")
"""Speeds over the first arm: tokens / seconds of all prompts, or the geometric mean over prompts of that ratio."""
ROLES = ("generator", "evaluator")


class Resampled:
    """Figures of the prompts that every arm answered: counts, speeds, shares of the time, and roles of a search.

    ``GENERATOR_alpha`` and ``GENERATOR_throughput`` are those of a role, prefills included. ``arms`` begins with the
    baseline. By default they are in the order of the records. A category needs the run's, because arms take turns in
    going first.
    """

    def __init__(self, records: Sequence[PromptRecord], arms: Sequence[str] = ()) -> None:
        self.arms = list(arms) or arm_names(records)
        found = {arm: {one.key: one for one in records if one.arm == arm and not one.error} for arm in self.arms}
        keys = sorted(set.intersection(*map(set, found.values()))) if found else []
        prompts = sorted({prompt for prompt, _ in keys})
        # the records of each prompt, one a sample, in the same order for every arm
        self._found = {
            arm: [[own[key] for key in keys if key[0] == prompt] for prompt in prompts] for arm, own in found.items()
        }
        self.prompts = len(prompts)
        self._weights = prompt_weights(self.prompts)
        self.draws = cache(self._draws)

    def figure(self, name: str, arm: str) -> list[float]:
        """Return the figure of an arm with its interval; raises LookupError if it has none."""
        return interval(self.draws(name, arm))

    def names(self, arm: str) -> list[str]:
        """Return the names of the figures that an arm may have."""
        phases = dict.fromkeys(phase for own in self._found[arm] for one in own for phase in one.seconds)
        roles = [f"{role}_{figure}" for role in ROLES for figure in ("alpha", "throughput")]
        return [*COUNTS, *OWN, *SPEEDS, *roles, "outside_forward", *(f"share of {phase}" for phase in phases)]

    def _draws(self, name: str, arm: str) -> Draws:
        """Return the draws of a figure; raises LookupError if the arm has no such figure."""
        if arm not in self._found:
            raise LookupError(arm)
        role, _, figure = name.partition("_")
        if name in SPEEDS or (role in ROLES and figure == "throughput"):
            return self._speed(name, arm)
        shares = [[self._share(name, record) for record in own] for own in self._found[arm]]
        return self._quotient(shares, name)

    def _quotient(self, shares: Sequence[Sequence[Share | None]], name: str) -> Draws:
        sums = np.array([np.sum([one or (0, 0) for one in own], axis=0) for own in shares]).reshape(-1, 2)
        part, whole = (self._weights @ sums).T
        if not whole[:1].any():
            raise LookupError(name)
        with np.errstate(divide="ignore", invalid="ignore"):
            quotient: Draws = part / whole
        return quotient

    def _share(self, name: str, record: PromptRecord) -> Share | None:
        role, _, figure = name.partition("_")
        if role in ROLES and figure == "alpha":
            one = record.group.roles.get(role) if record.group else None
            return None if one is None else Share(one.accepted_drafts, one.drafted_positions)
        total, phase = sum(record.seconds.values()), name.removeprefix("share of ")
        if name == "outside_forward":
            passes = record.seconds.get("target", 0.0)
            passes += record.seconds.get("draft", 0.0) if record.draft_passes else 0.0
            return Share(total - passes, total)
        if phase != name:
            return Share(record.seconds.get(phase, 0.0), total)
        value = OWN[name](record) if name in OWN else metric_named(name).from_record(record)
        return value if isinstance(value, Share) else None

    def _speed(self, name: str, arm: str) -> Draws:
        """Return the speed over the first arm; raises LookupError if their seconds may not be compared."""
        baseline = self.arms[0]
        ours, theirs = self._found[arm], self._found[baseline]
        pairs = list(zip(chain(*ours), chain(*theirs), strict=True))
        if arm == baseline or (why := refusal(pairs, arm, baseline)):
            raise LookupError(f"a speed of {arm}: {'the baseline' if arm == baseline else why}")
        if not name.endswith("speedup"):
            own, plain = (
                self._quotient([[_pace(name, record) for record in one] for one in found], name)
                for found in (ours, theirs)
            )
            return own / plain
        logs = [
            np.mean([np.log(_pace(name, one).value or np.nan) for one in own])
            - np.mean([np.log(_pace(name, one).value or np.nan) for one in plain])
            for own, plain in zip(ours, theirs, strict=True)
        ]
        known = np.isfinite(logs)  # an output that ended with the prefill has no time per token
        weights = self._weights[:, known]
        mean: Draws = np.exp(weights @ np.array(logs)[known] / weights.sum(axis=1))
        return mean


def prompt_weights(prompts: int) -> Draws:
    """Return ``[RESAMPLES + 1, prompts]`` how often each prompt counts: once, then as often as it was drawn."""
    drawn = np.random.default_rng(0).integers(max(prompts, 1), size=(RESAMPLES, prompts))
    return np.array([np.ones(prompts), *(np.bincount(row, minlength=prompts) for row in drawn)])


def _pace(name: str, record: PromptRecord) -> Share:
    """Return tokens and seconds: of decoding, of the whole search (``end_to_end``), or of a role of it."""
    role = name.partition("_")[0]
    if role in ROLES:
        one = record.group.roles.get(role) if record.group else None
        return Share(one.tokens, one.decode_seconds + one.prefill_seconds) if one else Share(0, 0)
    if not name.startswith("end_to_end"):
        return Share(record.decode_tokens, record.decode_seconds)
    whole = record.prefill_seconds + record.decode_seconds
    return Share(record.new_tokens, record.group.wall_seconds if record.group else whole)


def _ungrafted(record: PromptRecord) -> Share:
    """Return accepted and fed nodes without those of grafted phrases."""
    fed, accepted = record.nodes_by_source.get(GRAFTED, (0, 0))
    return Share(record.accepted_drafts - accepted, record.drafted_nodes - fed)


def widened(figure: Sequence[float], prompts: int) -> Sequence[float]:
    """Return a figure with its bootstrap interval widened for few prompts, about to Student's t interval.

    On a scale of logarithms the ends move away from the figure by the factor sqrt(n / (n - 1)) t / z (Hesterberg
    2015, expanded percentiles). It is 1.9 for 4 prompts, 1.3 for 8 and 1.1 for 24.
    """
    value, *ends = figure
    if prompts < 2 or min(figure) <= 0:
        return figure
    quantile = (1 + CONFIDENCE) / 2
    factor = stdtrit(prompts - 1, quantile) / ndtri(quantile) * np.sqrt(prompts / (prompts - 1))
    return [value, *(float(value * (end / value) ** factor) for end in ends)]


def interval(draws: Draws) -> list[float]:
    """Return the value on all prompts and its bootstrap percentile interval."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(draws[1:], [tail, 1 - tail])
    return [float(draws[0]), float(min(low, draws[0])), float(max(high, draws[0]))]
