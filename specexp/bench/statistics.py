"""What the records of a run say: paired speedups with intervals, tokens per step, shares of EOS and loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specexp.bench import metrics
from specexp.bench.clock import clock_of
from specexp.bench.record import MEASURED, PromptRecord

if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 10_000
METRIC_RESAMPLES = 2_000
CONFIDENCE = 0.95
_SCALARS = ("str", "int", "float", "bool")


@dataclass(frozen=True)
class Speedup:
    """How much faster an arm is than a baseline, prompt by prompt.

    Attributes:
        arm: The arm.
        baseline: The baseline.
        mean_log_ratio: Mean over prompts of log(baseline seconds per token / arm seconds per token).
        ratio: Its exponential, the geometric mean of the ratios.
        low: Lower end of the 95 % bootstrap interval of the ratio; of a single prompt the ratio itself.
        high: Upper end; likewise.
        n: prompts.
        refused: Why no speedup is given; None if one is. The numbers are then NaN.
        left_out: Prompts without a time per token in both arms (failed, or ended with the prefill).
        clock: Clock of both arms' seconds.
    """

    arm: str
    baseline: str
    mean_log_ratio: float
    ratio: float
    low: float
    high: float
    n: int
    refused: str | None = None
    left_out: int = 0
    clock: str = MEASURED

    @classmethod
    def of(
        cls,
        arm: str,
        baseline: str,
        log_ratios: NDArray[np.float64],
        clock: str,
        *,
        interval: bool = True,
        left_out: int = 0,
    ) -> Speedup:
        """The geometric mean of the prompts' ratios, with its bootstrap interval.

        Args:
            arm: Name of the arm.
            baseline: Name of the arm it is compared with.
            log_ratios: ``[n]`` log(baseline seconds / arm seconds), one a prompt.
            clock: Clock of both arms' seconds.
            interval: Whether the interval is wanted, which takes most of the time; else both ends are the ratio.
            left_out: Prompts without a ratio.
        """
        mean = float(log_ratios.mean())
        low, high = bootstrap_interval(log_ratios) if interval else (mean, mean)
        ratio, lowest, highest = (float(np.exp(value)) for value in (mean, low, high))
        return cls(arm, baseline, mean, ratio, lowest, highest, log_ratios.size, None, left_out, clock)

    @classmethod
    def refuse(cls, arm: str, baseline: str, reason: str, left_out: int = 0) -> Speedup:
        """No speedup, for a stated reason."""
        nan = float("nan")
        return cls(arm, baseline, nan, nan, nan, nan, 0, reason, left_out)

    @property
    def errors(self) -> tuple[float, float]:
        """How far the interval reaches below and above the ratio."""
        return self.ratio - self.low, self.high - self.ratio

    @property
    def has_interval(self) -> bool:
        """Whether there are prompts enough to tell how far the ratio scatters: one says nothing of it."""
        return self.refused is None and self.n > 1

    @property
    def is_faster(self) -> bool:
        """Whether the whole interval lies above 1."""
        return self.has_interval and self.low > 1

    @property
    def is_slower(self) -> bool:
        """Whether the whole interval lies below 1."""
        return self.has_interval and self.high < 1

    @property
    def unlabelled(self) -> str:
        """Ratio and interval alone, for where the clock is told already."""
        if self.refused is not None:
            return f"refused: {self.refused}"
        if not self.has_interval:
            return f"{self.ratio:.2f}x (one prompt)"
        return f"{self.ratio:.2f}x [{self.low:.2f}, {self.high:.2f}]"

    def __str__(self) -> str:
        modelled = self.refused is None and self.clock != MEASURED
        return f"{self.unlabelled} modelled" if modelled else self.unlabelled


def paired_speedup(
    records: Iterable[PromptRecord],
    arm: str,
    baseline: str,
    *,
    cost: Callable[[PromptRecord], float | None] | None = None,
    interval: bool = True,
) -> Speedup:
    """The paired speedup of an arm, refused where the two are not comparable.

    Args:
        records: Records of a run; those of other arms are passed over.
        arm: Name of the arm.
        baseline: Name of the arm it is compared with.
        cost: What a record that did not fail took per token, or None where it has none; decode seconds per token if
            None.
        interval: Whether the interval is wanted, which takes most of the time; else both ends are the ratio.

    Example:
        >>> records = read_records("runs/train_free/records.jsonl")  # doctest: +SKIP
        >>> print(paired_speedup(records, "recycling", "engine"))  # doctest: +SKIP
        1.41x [1.36, 1.46]
    """

    def seconds_of(record: PromptRecord) -> float | None:
        if record.error:
            return None
        return record.seconds_per_token if cost is None else cost(record)

    records = list(records)
    ours = {record.key: record for record in records if record.arm == arm}
    theirs = {record.key: record for record in records if record.arm == baseline}
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    reason = refusal(pairs, arm, baseline)
    ratios = [
        (record.prompt_id, float(np.log(plain / seconds)))
        for record, other in pairs
        if (seconds := seconds_of(record)) and (plain := seconds_of(other))
    ]
    logs = mean_by_prompt(ratios)
    left_out = len({record.prompt_id for record, _ in pairs}) - logs.size
    if reason is None and not ratios:
        reason = f"no prompt has a time per token in both {arm} and {baseline}"
    if reason is not None:
        return Speedup.refuse(arm, baseline, reason, left_out)
    used = clock_of(record for record, _ in pairs)
    return Speedup.of(arm, baseline, logs, used, interval=interval, left_out=left_out)


def mean_by_prompt(log_ratios: Iterable[tuple[str, float]]) -> NDArray[np.float64]:
    """``[n]`` means of each prompt's log ratios: its samples are not independent, so prompts are what is resampled.

    Args:
        log_ratios: Prompt's id and log ratio of every sample.
    """
    by_prompt: dict[str, list[float]] = defaultdict(list)
    for prompt_id, log_ratio in log_ratios:
        by_prompt[prompt_id].append(log_ratio)
    return np.array([np.mean(values) for values in by_prompt.values()])


def refusal(pairs: Sequence[tuple[PromptRecord, PromptRecord]], arm: str, baseline: str) -> str | None:
    """Why two arms' seconds may not be compared, or None if they may.

    Args:
        pairs: Records of both, prompt by prompt.
        arm: Name of the first.
        baseline: Name of the second.
    """
    pairs = [(first, second) for first, second in pairs if not first.error and not second.error]
    if not pairs:
        return f"no prompt was answered by both {arm} and {baseline}"
    for what in ("dtype", "device", "clock"):
        found = {(getattr(first, what), getattr(second, what)) for first, second in pairs}
        for one, other in sorted(found):
            if one != other:
                return f"{what} differs ({arm}: {one}, {baseline}: {other})"
    clocks = sorted({record.clock for pair in pairs for record in pair})
    if len(clocks) > 1:
        return f"clock differs between prompts ({', '.join(clocks)})"
    for first, second in pairs:
        if "stateless" not in (first.state, second.state) and first.state != second.state:
            return f"state policy differs ({arm}: {first.state}, {baseline}: {second.state})"
        if first.keyed and second.keyed and first.verifier != second.verifier:
            return f"verifier differs ({arm}: {first.verifier}, {baseline}: {second.verifier})"
    wrong = sum(_unexcused(first, second) for first, second in pairs)
    if wrong:
        return f"{wrong} of {len(pairs)} outputs differ from {baseline}'s other than at a near tie"
    return None


def _unexcused(first: PromptRecord, second: PromptRecord) -> bool:
    if not (first.keyed and second.keyed) or first.token_ids == second.token_ids:
        return False
    differences = [record.difference for record in (first, second) if record.difference is not None]
    return not (differences and all(difference.near_tie for difference in differences))


def bootstrap_interval(values: NDArray[np.float64], *, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Percentile interval of the mean of ``values`` ``[n]``, from the same resamples every time; one value is its own
    interval.
    """
    from scipy.stats import bootstrap

    if values.size == 1:
        return float(values[0]), float(values[0])
    found = bootstrap(
        (values,),
        np.mean,
        n_resamples=resamples,
        batch=max(1, 4_000_000 // values.size),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    mean = values.mean()  # of equal values the resamples differ from it in the last bit
    return float(min(found.low, mean)), float(max(found.high, mean))


def metric_interval(records: Iterable[PromptRecord], arm: str, name: str) -> tuple[float, float] | None:
    """The bootstrap interval of a metric over an arm's prompts; None where there are fewer than two.

    Args:
        records: Records of a run; those of other arms are passed over.
        arm: Name of the arm.
        name: Name of the metric.
    """
    by_prompt: dict[str, list[PromptRecord]] = defaultdict(list)
    for record in records:
        if record.arm == arm and not record.error:
            by_prompt[record.prompt_id].append(record)
    prompts = list(by_prompt.values())
    if len(prompts) < 2:
        return None
    metric = next(one for one in metrics.METRICS if one.name == name)
    drawn = np.random.default_rng(0).integers(len(prompts), size=(METRIC_RESAMPLES, len(prompts)))
    values = [metric.over([record for place in row for record in prompts[place]]) for row in drawn]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.array(values, dtype=np.float64), [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True)
class Summary:
    """What the records of an arm say together.

    Attributes:
        arm: Name of the arm.
        prompts: Prompts and samples answered.
        failed: Prompts and samples that failed.
        state: State policy of the drafter.
        dtype: Dtype of the target.
        verifier: The verifier with its arguments, marked where it is lossy.
        clock: Clock of all seconds: ``measured``, or which latency profile they are modelled by.
        figures: Every metric by its name; each is an attribute too, e.g. ``summary.tokens_per_step``.
    """

    arm: str
    prompts: int
    failed: int
    state: str
    dtype: str
    verifier: str
    clock: str
    figures: Mapping[str, float | None]

    def __getattr__(self, name: str) -> Any:
        figures = self.__dict__.get("figures", {})
        if name not in figures:
            raise AttributeError(f"a summary has no {name!r}: metrics are {', '.join(figures)}")
        return figures[name]


def summarise(records: Iterable[PromptRecord], arm: str) -> Summary:
    """An arm's metrics over a run; counts are 0 when every prompt failed.

    Raises:
        ValueError: some of its seconds are measured and others modelled.
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


def records_frame(records: Iterable[PromptRecord]) -> pd.DataFrame:
    """Records as a table, one row each: its fields, its metrics by name, and ``record`` itself.

    What a record says in more than a word (tokens, times by phase, several sequences) is left to ``record``.

    Example:
        >>> frame = records_frame(records)  # doctest: +SKIP
        >>> frame.groupby(["category", "arm"], sort=False)["tokens_per_step"].mean()  # doctest: +SKIP
    """
    import pandas as pd

    plain = [field.name for field in fields(PromptRecord) if str(field.type).split(" |")[0] in _SCALARS]
    return pd.DataFrame(
        [
            {name: getattr(record, name) for name in plain}
            | {metric.name: None if record.error else metric.of(record) for metric in metrics.METRICS}
            | {"record": record}
            for record in records
        ],
        columns=list(dict.fromkeys([*plain, *(metric.name for metric in metrics.METRICS), "record"])),
    )


def arm_names(records: Iterable[PromptRecord]) -> list[str]:
    """Arms in the order they first appear."""
    return list(dict.fromkeys(record.arm for record in records))


def categories(records: Iterable[PromptRecord]) -> list[str]:
    """Categories in the order they first appear."""
    return list(dict.fromkeys(record.category for record in records))
