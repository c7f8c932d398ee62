"""What the records of a run say: paired speedups with intervals, tokens per step, shares of EOS and loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specexp.bench.clock import clock_of
from specexp.bench.looping import loops
from specexp.bench.record import MEASURED, PromptRecord

RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Speedup:
    """How much faster an arm is than a baseline, prompt by prompt.

    Attributes:
        arm: the arm.
        baseline: the baseline.
        mean_log_ratio: mean over prompts of log(baseline seconds per token / arm seconds per token).
        ratio: its exponential, the geometric mean of the ratios.
        low: lower end of the 95 % bootstrap interval of the ratio; of a single prompt the ratio itself.
        high: upper end; likewise.
        n: prompts.
        refused: why no speedup is given; None if one is. The numbers are then NaN.
        left_out: prompts without a time per token in both arms (failed, or ended with the prefill).
        clock: of both arms' seconds.
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
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Speedup:
    """The paired speedup of an arm, refused where the two are not comparable.

    Args:
        records: of a run; others than the two arms' are passed over.
        arm: the arm.
        baseline: the baseline.
        cost: seconds per token of a record that did not fail, or None where it has none; decode seconds per token if
            None.
        seed: of the bootstrap.
        resamples: of the bootstrap.

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
    ratios: dict[str, list[float]] = defaultdict(list)
    for record, other in pairs:
        seconds, other_seconds = seconds_of(record), seconds_of(other)
        if seconds and other_seconds:
            ratios[record.prompt_id].append(float(np.log(other_seconds / seconds)))
    left_out = len({record.prompt_id for record, _ in pairs}) - len(ratios)
    if reason is None and not ratios:
        reason = f"no prompt has a time per token in both {arm} and {baseline}"
    if reason is not None:
        nan = float("nan")
        return Speedup(arm, baseline, nan, nan, nan, nan, 0, reason, left_out)
    # samples of a prompt are not independent: prompts are what is resampled
    logs = np.array([np.mean(values) for values in ratios.values()])
    low, high = bootstrap_interval(logs, seed=seed, resamples=resamples)
    mean = float(logs.mean())
    return Speedup(
        arm,
        baseline,
        mean,
        float(np.exp(mean)),
        float(np.exp(low)),
        float(np.exp(high)),
        logs.size,
        None,
        left_out,
        clock_of(record for record, _ in pairs),
    )


def refusal(pairs: Sequence[tuple[PromptRecord, PromptRecord]], arm: str, baseline: str) -> str | None:
    """Why two arms' seconds may not be compared, or None if they may.

    Args:
        pairs: their records, prompt by prompt.
        arm: name of the first.
        baseline: name of the second.
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


def bootstrap_interval(
    values: NDArray[np.float64], *, seed: int = 0, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Percentile interval of the mean of ``values`` ``[n]``, from seeded resamples."""
    generator = np.random.default_rng(seed)
    means = np.concatenate(
        [
            values[generator.integers(0, values.size, size=(chunk, values.size))].mean(axis=1)
            for chunk in _chunks(resamples, max(1, 4_000_000 // values.size))
        ]
    )
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _chunks(total: int, most: int) -> list[int]:
    return [min(most, total - start) for start in range(0, total, most)]


@dataclass(frozen=True)
class ArmSummary:
    """One arm's row of a table; means in two ways, never mixed.

    Attributes:
        arm: name.
        prompts: prompts and samples answered.
        failed: prompts and samples that failed.
        state: state policy.
        dtype: of the target.
        verifier: with its arguments, marked where it is lossy.
        clock: of all seconds: ``measured``, or which latency profile they are modelled by.
        tokens_per_step: micro mean: all tokens / all steps.
        tokens_per_step_macro: macro mean: of the prompts' own ratios.
        tokens_per_second: all decoded tokens / all decode seconds.
        seconds_per_token: its inverse.
        prefill_seconds: mean a prompt; None where seconds are modelled.
        nodes_per_step: drafted nodes a step.
        draft_passes_per_step: passes of a draft model a step.
        utilisation: accepted drafts / drafted nodes; None if nothing was drafted.
        eos_share: answers ended by EOS.
        loop_share: answers that end in a loop.
    """

    arm: str
    prompts: int
    failed: int
    state: str
    dtype: str
    verifier: str
    clock: str
    tokens_per_step: float
    tokens_per_step_macro: float
    tokens_per_second: float
    seconds_per_token: float
    prefill_seconds: float | None
    nodes_per_step: float
    draft_passes_per_step: float
    utilisation: float | None
    eos_share: float
    loop_share: float


def summarise(records: Iterable[PromptRecord], arm: str) -> ArmSummary:
    """An arm's counts over a run; zeros when every prompt failed.

    Raises:
        ValueError: some of its seconds are measured and others modelled.
    """
    own = [record for record in records if record.arm == arm]
    good = [record for record in own if not record.error]
    steps = sum(record.steps for record in good)
    tokens = sum(record.new_tokens for record in good)
    seconds = sum(record.decode_seconds for record in good)
    decoded = sum(record.decode_tokens for record in good)
    drafted = sum(record.drafted_nodes for record in good)
    answers = [answer for record in good for answer in record.answers()]
    clock = clock_of(good)
    per_prompt = [record.tokens_per_step for record in good if record.tokens_per_step is not None]
    return ArmSummary(
        arm=arm,
        prompts=len(good),
        failed=len(own) - len(good),
        state=good[0].state if good else "stateless",
        dtype=good[0].dtype if good else "",
        verifier=_verifier_name(good[0]) if good else "",
        clock=clock,
        tokens_per_step=_share(tokens, steps),
        tokens_per_step_macro=float(np.mean(per_prompt)) if per_prompt else 0.0,
        tokens_per_second=_share(decoded, seconds),
        seconds_per_token=_share(seconds, decoded),
        prefill_seconds=_share(sum(record.prefill_seconds for record in good), len(good))
        if clock == MEASURED
        else None,
        nodes_per_step=_share(drafted, steps),
        draft_passes_per_step=_share(sum(record.draft_passes for record in good), steps),
        utilisation=_share(sum(record.accepted_drafts for record in good), drafted) if drafted else None,
        eos_share=_share(
            sum(reason == "eos" for record in good for reason in record.finish_reasons), len(answers)
        ),
        loop_share=_share(sum(loops(answer) for answer in answers), len(answers)),
    )


def _verifier_name(record: PromptRecord) -> str:
    return record.verifier if record.lossless else f"{record.verifier} (LOSSY)"


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def arm_names(records: Iterable[PromptRecord]) -> list[str]:
    """Arms in the order they first appear."""
    return list(dict.fromkeys(record.arm for record in records))


def categories(records: Iterable[PromptRecord]) -> list[str]:
    """Categories in the order they first appear."""
    return list(dict.fromkeys(record.category for record in records))
