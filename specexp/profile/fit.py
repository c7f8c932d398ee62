"""Fits a latency profile to measured passes and measured steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

from specexp.artifacts.environment import device_name
from specexp.artifacts.kinds.latency_profile import Measured, MeasuredPass
from specexp.base.messages import counted
from specexp.core.dialogue import PLAIN
from specexp.core.language_model import compute_device
from specexp.core.latency import LatencyProfile, Overhead
from specexp.models.smollm2 import described
from specexp.profile.measure import StepTiming, TimedBackend, TimedSteps
from specexp.profile.passes import TargetPass
from specexp.profile.roofline import roofline_of

# share of steps trimmed at each end: a disturbance makes a step far longer, a warm cache shorter
_TRIMMED = 0.01
_RIDGE = 1e-3  # relative to a column's norm; without it, trees of a single size give collinear columns


def profile_of(timed: TimedBackend) -> tuple[LatencyProfile, Measured]:
    """Fit a profile to the measurements of a backend, and return both."""
    pair, passes = timed.backend.pair, timed.passes
    target, draft = (passes[model].points() if model in passes else [] for model in ("target", "draft"))
    place = compute_device(pair.target)
    device, threads = device_name(str(place)), torch.get_num_threads()
    dtype, draft_dtype = timed.dtypes
    on_cpu = [counted(threads, "thread")] if place.type == "cpu" else []
    conditions = [f"{described(pair.name)} on {device}", dtype, *on_cpu, *filter(None, [timed.name])]
    lanes_ms = {
        samples.timed.lanes: {point.tokens: point.ms for point in samples.points()}
        for samples in passes.values()
        if isinstance(samples.timed, TargetPass) and samples.timed.lanes > 1
    }
    pads = any(one.timed.model.pads_rows for one in passes.values() if isinstance(one.timed, TargetPass))
    about = {"name": ", ".join(conditions), "lanes_ms": lanes_ms, "buckets": pads}
    profile = fit_profile(about, target, draft, timed.arms)
    roofline = roofline_of(passes["limits"]) if "limits" in passes else None
    return profile, Measured(device, threads, dtype, draft_dtype, target, draft, roofline)


@dataclass(frozen=True)
class FittedPass:
    """The fitted costs of a pass, in the units of a latency profile."""

    prefix: int  # tokens in the cache
    ms: dict[int, float]  # milliseconds at that prefix, by number of tokens fed
    prefix_ms: float  # milliseconds added per 1,000 more prefix tokens
    prefix_token_ms: float  # milliseconds added per 1,000 more prefix tokens, for each token fed


def fit_pass(points: Sequence[MeasuredPass]) -> FittedPass:
    """Fit the time of a pass at the middle prefix, and its growth with the prefix.

    Sizes must be the same for all prefixes. The growth is fitted to relative errors by non-negative least squares.
    """
    from scipy.optimize import nnls

    prefixes = sorted({point.prefix for point in points})
    stated = prefixes[(len(prefixes) - 1) // 2]
    by_tokens: dict[int, list[MeasuredPass]] = defaultdict(list)
    for point in points:
        by_tokens[point.tokens].append(point)
    rows, rest = [], []
    for tokens, group in by_tokens.items():
        level = fmean(point.ms for point in group)
        center = fmean(point.prefix for point in group)
        for point in group:
            longer = (point.prefix - center) / 1e3 / level
            rows.append((longer, longer * tokens))
            rest.append(point.ms / level - 1)
    prefix_ms, prefix_token_ms = map(float, nnls(np.array(rows), np.array(rest))[0])
    ms = {
        tokens: median(
            point.ms - (prefix_ms + prefix_token_ms * tokens) * (point.prefix - stated) / 1e3 for point in group
        )
        for tokens, group in by_tokens.items()
    }
    return FittedPass(stated, ms, prefix_ms, prefix_token_ms)


def fit_overhead(profile: LatencyProfile, steps: Sequence[StepTiming]) -> Overhead:
    """Fit a composition's time per step outside the passes by non-negative least squares, excluding outliers.

    If all trees have the same size, the costs per step and per node cannot be separated, so each gets half. Overheads
    in ``profile`` are ignored.
    """
    from scipy.optimize import nnls

    bare = replace(profile, step_ms=0.0, node_ms=0.0, token_ms=0.0, overheads={})
    rows = np.array([_row(step) for step in steps], dtype=np.float64)  # [n, 3]
    rest = np.array([1e3 * (step.seconds - _predicted(bare, step)) for step in steps])
    kept = np.ones(len(steps), dtype=np.bool_)
    found = np.zeros(3)
    for _ in range(2):  # all steps, then those within the quantiles of the first fit's residuals
        scale = np.linalg.norm(rows[kept], axis=0)
        scale[scale == 0] = np.inf  # a column of zeros costs nothing
        scaled = np.vstack((rows[kept] / scale, _RIDGE * np.eye(3)))
        found = nnls(scaled, np.append(rest[kept], np.zeros(3)))[0] / scale
        left = rest - rows @ found
        low, high = np.quantile(left, [_TRIMMED, 1 - _TRIMMED])
        kept = (left >= low) & (left <= high)
    return Overhead(*(float(value) for value in found))


def fit_profile(
    about: Mapping[str, Any],
    target: Sequence[MeasuredPass],
    draft: Sequence[MeasuredPass],
    arms: Iterable[TimedSteps],
) -> LatencyProfile:
    """Fit a complete profile. Its top-level overhead is fitted to all drafting compositions together."""
    of_target = fit_pass(target)
    of_draft = fit_pass(draft) if draft else FittedPass(of_target.prefix, {}, 0.0, 0.0)
    profile = LatencyProfile(
        target_ms=of_target.ms,
        draft_ms=of_draft.ms,
        prefix_tokens=of_target.prefix,
        target_prefix_ms=of_target.prefix_ms,
        target_prefix_token_ms=of_target.prefix_token_ms,
        draft_prefix_ms=of_draft.prefix_ms,
        draft_prefix_token_ms=of_draft.prefix_token_ms,
        source="measured",
        **about,
    )
    steps: dict[str, list[StepTiming]] = defaultdict(list)
    for arm in arms:
        steps[arm.composition] += arm.steps
    overheads = {label: fit_overhead(profile, taken) for label, taken in steps.items() if taken}
    drafting = [step for label, taken in steps.items() if label != PLAIN for step in taken]
    together = fit_overhead(profile, drafting) if drafting else Overhead()
    return replace(profile, overheads=overheads, **asdict(together))


def _predicted(profile: LatencyProfile, step: StepTiming) -> float:
    return profile.step_seconds(step.tokens, step.pass_tokens, step.new_tokens, step.prefix)


def _row(step: StepTiming) -> tuple[int, int, int]:
    # whether it drafted, its nodes, and its new tokens
    return int(step.tokens > 1 or bool(step.pass_tokens)), step.tokens - 1, step.new_tokens
