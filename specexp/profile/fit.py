"""Fits a latency profile to measured passes and measured steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
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


def fit_pass(points: Sequence[MeasuredPass], model: str) -> dict[str, Any]:
    """Return a latency profile's arguments for the passes of a ``model``, such as ``target_ms`` and ``prefix_tokens``.

    The time of a pass is fitted at the middle prefix, and its growth with the prefix to relative errors, by
    non-negative least squares. Sizes must be the same for all prefixes.
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
    growth = {f"{model}_prefix_ms": prefix_ms, f"{model}_prefix_token_ms": prefix_token_ms}
    return {f"{model}_ms": ms, **growth, "prefix_tokens": stated}


def fit_overhead(profile: LatencyProfile, steps: Sequence[StepTiming]) -> Overhead:
    """Fit a composition's time per step outside the passes by non-negative least squares, excluding outliers.

    If all trees have the same size, the costs per step and per node cannot be separated, so each gets half. Overheads
    in ``profile`` are ignored.
    """
    from scipy.optimize import nnls

    bare = replace(profile, step_ms=0.0, node_ms=0.0, token_ms=0.0, overheads={})
    # whether it drafted, its nodes, and its new tokens
    sizes = [(step.tokens > 1 or bool(step.pass_tokens), step.tokens - 1, step.new_tokens) for step in steps]
    rows = np.array(sizes, dtype=np.float64)  # [n, 3]
    predicted = [bare.step_seconds(one.tokens, one.pass_tokens, one.new_tokens, one.prefix) for one in steps]
    rest = 1e3 * (np.array([step.seconds for step in steps]) - predicted)  # [n] milliseconds
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
    of_draft = fit_pass(draft, "draft") if draft else {}
    profile = LatencyProfile(source="measured", **about, **(of_draft | fit_pass(target, "target")))
    steps: dict[str, list[StepTiming]] = defaultdict(list)
    for arm in arms:
        steps[arm.composition] += arm.steps
    overheads = {label: fit_overhead(profile, taken) for label, taken in steps.items() if taken}
    drafting = [step for label, taken in steps.items() if label != PLAIN for step in taken]
    together = fit_overhead(profile, drafting) if drafting else Overhead()
    return replace(profile, overheads=overheads, **asdict(together))
