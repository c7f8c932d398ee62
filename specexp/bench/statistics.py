"""Statistics of a run's records: paired speedups with intervals, metrics of an arm, and step time by phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specexp.base.messages import counted
from specexp.bench import metrics
from specexp.bench.clock import clock_of
from specexp.bench.record import FEWEST_TOKENS, MEASURED, MOST_RANDOM, PromptRecord
from specexp.core.context import loop_of

CONFIDENCE = 0.95
QUANTILE = (1 + CONFIDENCE) / 2
FEWEST_PROMPTS = 4
"""Fewest prompts for a verdict. The spread of two or three ratios is itself mostly luck."""
FEWEST_OF_A_KIND = 3
"""Fewest prompts of each kind for an interval within kinds. The spread of two is mostly luck."""
WITHIN = "Student's t, within kinds of at least three prompts each"
"""The kind of interval, for notes below tables."""
IMPOSSIBLE = 1.15
"""Largest believed speedup per token per step. A pass over a tree costs at least as much as over one row."""


@dataclass(frozen=True)
class Speedup:
    """The speedup of an arm over a baseline on the same prompts."""

    arm: str
    baseline: str
    mean_log_ratio: float  # mean over prompts of log(baseline seconds per token / arm seconds per token)
    ratio: float  # exp(mean_log_ratio), the geometric mean of the ratios
    low: float  # lower end of the ratio's 95 % interval (Student's t on log ratios); the ratio itself for one prompt
    high: float  # upper end of the same interval
    n: int
    refused: str | None = None  # why there is no speedup; all numbers are then NaN
    left_out: int = 0  # prompts that lack a time per token in either arm (failed, or ended with the prefill)
    clock: str = MEASURED
    disturbed: int = 0  # prompts left out because their times cannot be right; see :data:`DISTURBED`
    mirrored: int = 0  # prompts left out at the other end; see :func:`paired_speedup`
    quantile: float = QUANTILE  # of Student's t, from which the interval was computed
    degrees_lost: float = 1  # ``n`` minus the degrees of freedom of the interval

    @classmethod
    def of(
        cls,
        arm: str,
        baseline: str,
        log_ratios: NDArray[np.float64],  # [n] log(baseline seconds / arm seconds), one per prompt
        clock: str,
        *,
        among: int = 1,
        spread: float | None = None,
        kinds: Sequence[str] = (),
    ) -> Speedup:
        """Return the geometric mean of the prompts' ratios, with its interval by Student's t on the log ratios.

        ``spread`` is their standard deviation if prompts were left out at both ends, without which they differ less.
        ``among`` is the number of arms of which the fastest is chosen. The intervals of all of them hold at once
        (Bonferroni), so that the best of several equal arms is seldom called faster. ``kinds`` are the prompts'
        categories, as in :func:`standard_error`.
        """
        mean, quantile = float(log_ratios.mean()), 1 - (1 - CONFIDENCE) / 2 / among
        error, lost = standard_error(log_ratios, kinds, spread)
        half = student(log_ratios.size + 1 - lost, quantile) * error if error else 0.0
        ratio, low, high = (float(np.exp(value)) for value in (mean, mean - half, mean + half))
        n = log_ratios.size
        return cls(arm, baseline, mean, ratio, low, high, n, clock=clock, quantile=quantile, degrees_lost=lost)

    @classmethod
    def refuse(cls, arm: str, baseline: str, reason: str, left_out: int = 0) -> Speedup:
        """Return a refused speedup with the reason for the refusal."""
        nan = float("nan")
        return cls(arm, baseline, nan, nan, nan, nan, 0, reason, left_out)

    @property
    def has_interval(self) -> bool:
        """True if there are enough prompts for an interval (at least two)."""
        return self.refused is None and self.n > 1

    @property
    def has_enough(self) -> bool:
        """True if there are enough prompts for a verdict."""
        return self.refused is None and self.n >= FEWEST_PROMPTS

    @property
    def is_faster(self) -> bool:
        """True if the whole interval lies above 1, and there are enough prompts for a verdict."""
        return self.has_enough and self.low > 1

    @property
    def is_slower(self) -> bool:
        """True if the whole interval lies below 1, and there are enough prompts for a verdict."""
        return self.has_enough and self.high < 1

    @property
    def measured(self) -> int:
        """Number of prompts, including those left out."""
        return self.n + self.left_out + self.disturbed + self.mirrored

    @property
    def unlabeled(self) -> str:
        """Ratio and interval, without the clock."""
        if self.refused is not None:
            return f"refused: {self.refused}"
        interval = interval_text(self.low, self.high) if self.has_interval else "(one prompt)"
        return f"{self.ratio:.2f}x {interval}"

    def __str__(self) -> str:
        modelled = self.refused is None and self.clock != MEASURED
        return f"{self.unlabeled} modelled" if modelled else self.unlabeled


def paired_speedup(
    records: Iterable[PromptRecord],
    arm: str,
    baseline: str,
    *,
    cost: Callable[[PromptRecord], float | None] | None = None,
    among: int = 1,
) -> Speedup:
    """Return the paired speedup of an arm. It is refused if the arm and the baseline are not comparable.

    ``cost`` returns the cost per token of a record that did not fail, or None. The default is decode seconds per
    token. ``among`` is as in :meth:`Speedup.of`. Prompts with impossible or unsteady times are left out. If the run's
    noise reaches the impossible, as many of the lowest pass ratios are left out too, because a cut on one side alone
    would favor the baseline.
    """
    cost = cost or (lambda record: record.seconds_per_token)
    records = list(records)
    ours = {record.key: record for record in records if record.arm == arm}
    theirs = {record.key: record for record in records if record.arm == baseline}
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    reason = refusal(pairs, arm, baseline)
    timed = [
        (record, other, float(np.log(plain / seconds)))
        for record, other in pairs
        if not (record.error or other.error) and (seconds := cost(record)) and (plain := cost(other))
    ]
    whole = [entry for entry in timed if not entry[0].unsteady]
    passes = np.log([pass_ratio(record, other) or 1.0 for record, other, _ in whole])
    too_fast = passes > np.log(IMPOSSIBLE)
    mirror = int(too_fast.sum()) if deviating(records, arm, baseline)[1] else 0
    inside = ~too_fast & (passes.argsort().argsort() >= mirror)
    kept = [(record, log) for (record, _, log), stays in zip(whole, inside, strict=True) if stays]
    logs = mean_by_prompt((record.prompt_id, log) for record, log in kept)
    kinds = {record.prompt_id: record.category for record, _ in kept}  # in the order of ``logs``
    measured = len({record.prompt_id for record, *_ in timed})
    left_out = len({record.prompt_id for record, _ in pairs}) - measured
    # a prompt is disturbed if the times of all its samples are
    possible = {record.prompt_id for (record, *_), fast in zip(whole, too_fast, strict=True) if not fast}
    disturbed, mirrored = measured - len(possible), len(possible) - logs.size
    every = mean_by_prompt((record.prompt_id, log) for record, _, log in whole)
    spread = float(every.std(ddof=1)) if mirror else None
    if reason is None and not kept:
        reason = f"no prompt has a time per token in both {arm} and {baseline}"
        if disturbed:
            reason = f"all {counted(disturbed, 'prompt')} with a time per token have {DISTURBED}"
    if reason is None and mirror and disturbed > MOST_DISTURBED * measured:
        reason = (
            f"{NOTHING}: the machine was too busy: {disturbed} of {measured} prompts have {DISTURBED}, "
            "and the noise of the others reaches as far"
        )
    if reason is not None:
        return Speedup.refuse(arm, baseline, reason, left_out)
    used = clock_of(record for record, _ in pairs)
    found = Speedup.of(arm, baseline, logs, used, among=among, spread=spread, kinds=[*kinds.values()])
    return replace(found, left_out=left_out, disturbed=disturbed, mirrored=mirrored)


NOTHING = "nothing can be concluded"
MOST_DISTURBED = 0.2
"""Largest share of impossible times that may be left out of a noisy run, with as many at the other end."""
DISTURBED = "times that are faster than the tokens per step allow, or not repeatable"


def interval_text(low: float, high: float) -> str:
    """Return the interval of a ratio. A bound above 100 is cut, because two prompts can give 1e+21."""
    return "[" + ", ".join(f"{bound:.2f}" if bound <= 100 else ">100" for bound in (low, high)) + "]"


def pass_ratio(record: PromptRecord, other: PromptRecord) -> float | None:
    """Return how many times as long as a pass of ``record`` a plain pass of ``other`` took; physically at most 1.

    None if it is unknown: for modelled times, arms without our split of seconds (engines and Hugging Face's loops,
    which count steps in their own way), several sequences together, and baselines that draft.
    """
    known = record.clock == MEASURED and record.seconds and other.seconds
    if not known or record.group is not None or other.drafted_nodes or record.error or other.error:
        return None
    plain, ours, tokens = other.seconds_per_token, record.seconds_per_token, record.tokens_per_step
    return plain / ours / tokens if plain and ours and tokens else None


def deviating(records: Iterable[PromptRecord], arm: str, baseline: str) -> tuple[set[tuple[str, int]], bool]:
    """Return the prompts and samples with an impossible speedup, or with a pass ratio far from the arm's median.

    Far means a factor of :data:`IMPOSSIBLE` and three robust standard deviations. If the noise reaches the impossible,
    it means as far below the median as the impossible is above it: a cut on one side alone would favor an arm. Also
    returns whether this is so.
    """
    records = list(records)
    theirs = {record.key: record for record in records if record.arm == baseline}
    found = {
        record.key: float(np.log(ratio))
        for record in records
        if record.arm == arm and record.key in theirs and (ratio := pass_ratio(record, theirs[record.key]))
    }
    if not found:
        return set(), False
    logs, impossible = np.array([*found.values()]), float(np.log(IMPOSSIBLE))
    middle = float(np.median(logs))
    spread = 1.4826 * float(np.median(np.abs(logs - middle)))  # the factor of a normal distribution
    cut = logs.size >= FEWEST_PROMPTS and 3 * spread > impossible - middle
    far = impossible - middle if cut else max(impossible, 3 * spread)
    far = far if logs.size >= FEWEST_PROMPTS else float("inf")
    return {key for key, log in found.items() if log > impossible or abs(log - middle) > far}, cut


def mean_by_prompt(log_ratios: Iterable[tuple[str, float]]) -> NDArray[np.float64]:
    """Return the mean log ratio of each prompt id, ``[n]``.

    A prompt's samples are not independent, so the interval is over prompts.
    """
    by_prompt: dict[str, list[float]] = defaultdict(list)
    for prompt_id, log_ratio in log_ratios:
        by_prompt[prompt_id].append(log_ratio)
    return np.array([np.mean(values) for values in by_prompt.values()])


def refusal(pairs: Sequence[tuple[PromptRecord, PromptRecord]], arm: str, baseline: str) -> str | None:
    """Return the reason why two arms' seconds cannot be compared, or None if they can."""
    pairs = [(first, second) for first, second in pairs if not first.error and not second.error]
    if not pairs:
        return f"no prompt was answered by both {arm} and {baseline}"
    for name in ("dtype", "device", "clock"):
        found = {(getattr(first, name), getattr(second, name)) for first, second in pairs}
        for one, other in sorted(found):
            if one != other:
                return f"{name} differs ({arm}: {one}, {baseline}: {other})"
    for name, records in ((arm, [first for first, _ in pairs]), (baseline, [second for _, second in pairs])):
        made, random = (sum(record.decisions[one] for record in records) for one in (0, 1))
        if random > MOST_RANDOM * made:
            return f"{random / made:.0%} of the decisions of {name} were random; let it learn before the run (preload)"
    clocks = sorted({record.clock for pair in pairs for record in pair})
    if len(clocks) > 1:
        return f"clock differs between prompts ({', '.join(clocks)})"
    wrong = 0
    for first, second in pairs:
        keyed = first.keyed and second.keyed
        if "stateless" not in (first.state, second.state) and first.state != second.state:
            return f"state policy differs ({arm}: {first.state}, {baseline}: {second.state})"
        if keyed and first.verifier != second.verifier:
            return f"verifier differs ({arm}: {first.verifier}, {baseline}: {second.verifier})"
        parted = [one.difference.near_tie for one in (first, second) if one.difference is not None]
        wrong += keyed and first.token_ids != second.token_ids and not (parted and all(parted))
    if loops := looping(other for _, other in pairs):
        return f"{NOTHING}: {loops}"
    if wrong:
        return f"{wrong} of {len(pairs)} outputs differ from {baseline}'s, and not at a near tie"
    return None


def student(n: float, probability: float = QUANTILE) -> float:
    """Return the quantile of Student's t distribution with ``n - 1`` degrees of freedom."""
    from scipy.special import stdtrit  # importing scipy.stats takes much longer

    return float(stdtrit(n - 1, probability))


def looping(records: Iterable[PromptRecord]) -> str | None:
    """Return a clause if most answers are a repetition nearly from their start; None otherwise."""
    answers = [answer for record in records for answer in record.answers()]
    found = [loop for answer in answers if (loop := loop_of(answer)) is not None and loop[0] < FEWEST_TOKENS]
    if 2 * len(found) <= len(answers):
        return None
    what = "one token" if all(period == 1 for _, period in found) else "the same few tokens"
    return f"{len(found)} of {counted(len(answers), 'answer')} {'repeats' if len(found) == 1 else 'repeat'} {what}"


def standard_error(
    values: NDArray[np.float64],  # [n]
    kinds: Sequence[str] = (),  # [n] or empty
    spread: float | None = None,  # standard deviation; that of ``values`` by default
) -> tuple[float, float]:
    """Return the standard error of the mean of ``values``, and how many degrees of freedom it has fewer than values.

    With at least three of each of several kinds, their mix counts as given, as in a stratified sample. The error is
    then from the differences within kinds alone, with Satterthwaite's degrees of freedom.
    """
    n = values.size
    if n < 2:
        return 0.0, 1.0
    names = np.array(kinds)
    groups = [values[names == kind] for kind in dict.fromkeys(kinds)]
    if spread is not None or len(groups) < 2 or min(map(len, groups)) < FEWEST_OF_A_KIND:
        return (spread or float(values.std(ddof=1))) / n**0.5, 1.0
    parts = np.array([len(group) * group.var(ddof=1) / n**2 for group in groups])
    if not parts.any():
        return 0.0, 1.0
    freedom = np.array([len(group) - 1 for group in groups])
    degrees = float(parts.sum() ** 2 / (parts**2 / freedom).sum())
    return float(parts.sum() ** 0.5), n - degrees


def mean_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the interval for the mean of ``values`` ``[n]`` by Student's t. A bootstrap's is too narrow for few."""
    mean, (error, _) = float(values.mean()), standard_error(values)
    half = student(values.size) * error if error else 0.0
    return mean - half, mean + half


def metric_interval(records: Iterable[PromptRecord], arm: str, name: str) -> tuple[float, float] | None:
    """Return the interval of a metric over an arm's prompts by the jackknife; None for fewer than two prompts."""
    own = [record for record in records if record.arm == arm and not record.error]
    prompts = dict.fromkeys(record.prompt_id for record in own)
    n = len(prompts)
    if n < 2:
        return None
    metric = metrics.metric_named(name)
    whole = metric.over(own) or 0.0
    rests = ([record for record in own if record.prompt_id != left] for left in prompts)
    others = np.array([metric.over(rest) for rest in rests], dtype=np.float64)
    half = student(n) * float(others.std()) * (n - 1) ** 0.5
    return whole - half, whole + half


@dataclass(frozen=True)
class Summary:
    """A summary of all records of one arm."""

    arm: str
    prompts: int
    failed: int
    state: str
    dtype: str
    verifier: str  # the verifier with its arguments, marked if it is lossy
    clock: str  # clock of all seconds: ``measured``, or the latency profile that models them
    # all metrics by name; each is also an attribute, e.g. ``summary.tokens_per_step``
    figures: Mapping[str, float | None]

    def __getattr__(self, name: str) -> Any:
        figures = self.__dict__.get("figures", {})
        if name not in figures:
            raise AttributeError(f"a summary has no attribute {name!r}; metrics are {', '.join(figures)}")
        return figures[name]


def summarize(records: Iterable[PromptRecord], arm: str) -> Summary:
    """Return an arm's metrics over a run. Counts are 0 if every prompt failed.

    Raises ValueError if some of its seconds are measured and others modelled.
    """
    own = [record for record in records if record.arm == arm]
    good = [record for record in own if not record.error]
    first = good[0] if good else PromptRecord(arm, "", "")
    return Summary(
        arm=arm,
        prompts=len(good),
        failed=len(own) - len(good),
        state=first.state,
        dtype=first.dtype,
        verifier=first.verifier if first.lossless else f"{first.verifier} (LOSSY)",
        clock=clock_of(good),
        figures={metric.name: metric.over(good) for metric in metrics.METRICS},
    )


@dataclass(frozen=True)
class Breakdown:
    """An arm's mean time per step, by phase."""

    arm: str
    steps: float
    step_seconds: float
    shares: dict[str, float]  # share of each phase; they add up to 1
    draft_passes: float  # forward passes of a draft model per step
    clock: str = MEASURED  # if modelled, ``update`` contains all time outside the passes

    @property
    def outside_forward(self) -> float:
        """Share of time outside forward passes. If a drafter has a model, all its drafting time counts as passes."""
        draft = self.shares.get("draft", 0.0) if self.draft_passes else 0.0
        return 1.0 - self.shares.get("target", 0.0) - draft


def breakdown(records: Iterable[PromptRecord], arm: str) -> Breakdown | None:
    """Return the breakdown of an arm's steps, or None if its time is not split, as in Hugging Face's loops."""
    own = [record for record in records if record.arm == arm and not record.error and record.seconds]
    steps = sum(record.steps for record in own)
    total = sum(sum(record.seconds.values()) for record in own)
    if not steps or not total:
        return None
    phases = dict.fromkeys(phase for record in own for phase in record.seconds)
    shares = {phase: sum(record.seconds.get(phase, 0.0) for record in own) / total for phase in phases}
    passes = sum(record.draft_passes for record in own) / steps
    return Breakdown(arm, steps, total / steps, shares, passes, clock_of(own))


def arm_names(records: Iterable[PromptRecord]) -> list[str]:
    """Return the names of the arms in order of first appearance."""
    return list(dict.fromkeys(record.arm for record in records))


def categories(records: Iterable[PromptRecord]) -> list[str]:
    """Return the categories in order of first appearance."""
    return list(dict.fromkeys(record.category for record in records))
