"""Profiling the device as an experiment file describes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from specexp.bench.experiment import check_experiment
from specexp.config import (
    Config,
    arms_of,
    is_multi_sequence,
)
from specexp.core.messages import counted
from specexp.models.gguf import is_gguf

if TYPE_CHECKING:
    from specexp.artifacts.kinds.latency_profile import Measured
    from specexp.config import ComposedArm
    from specexp.core.latency import LatencyProfile
    from specexp.data import Prompt
    from specexp.profile.backends import Contest, TimedBackend
    from specexp.profile.steps import TimedLoop, TimedSteps

WARM_UP_TOKENS = 8


def check_profiling(config: Config) -> list[ComposedArm]:
    """The arms that are decoded beside plain decoding: all compositions of the file; models and data are not touched.

    Raises:
        ConfigError: the file decodes several sequences for a prompt, or its arms cannot be compared.
    """
    if is_multi_sequence(config):
        raise config.checker.error(
            ("execution",),
            " decodes several sequences for a prompt, and a latency profile is of one: leave it out",
        )
    for key in ("backends", "architecture", "draft_architecture"):
        if config.get("profile")[key] and is_gguf(config.get("pair.target")):
            raise config.checker.error(
                ("profile", key),
                " is for Hugging Face models, and pair.target is a GGUF file: leave it out",
            )
    if not config.get("profile.prefixes"):
        raise config.checker.error(("profile", "prefixes"), " is empty; at least one prefix length is needed")
    if not config.get("arms") and config.get("drafter") is None:
        return []
    check_experiment(config)
    return [arm for arm in arms_of(config) if arm.reference is None and arm.config.get("drafter") is not None]


def measure(
    config: Config,
    contest: Contest,
    prompts: Sequence[Prompt],
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Measure passes and decode in turns, each in an order of its own, so that all meet the same disturbances.

    Args:
        config: Configuration of the experiment.
        contest: What is measured, which keeps what it took.
        prompts: Prompts that every arm decodes.
        tell: Takes a line for a person as the work goes on.
    """
    import torch

    section, seed = config.get("profile"), config.get("generation.seed")
    samples = [
        *contest.bounds.values(),
        *chain.from_iterable(one.passes.values() for one in contest.backends),
    ]
    arms: list[TimedSteps | TimedLoop] = [
        *chain.from_iterable(one.arms for one in contest.backends),
        *contest.loops,
    ]
    with torch.inference_mode():
        for one in samples:
            one.warm_up()
        for arm in arms:
            arm.warm_up(prompts[0], min(WARM_UP_TOKENS, section["max_new_tokens"]))
        tell(f"profiling: warm, {counted(section['repeats'], 'repetition')} of every pass follow")
        measuring: list[Callable[[], None]] = []
        for repetition in range(section["repeats"]):
            blocks = [block for one in samples for block in one.blocks(repetition)]
            measuring += [
                blocks[place] for place in np.random.default_rng([seed, repetition]).permutation(len(blocks))
            ]
        done = 0
        for number, prompt in enumerate(prompts):
            order = np.random.default_rng([seed, number]).permutation(len(arms)).tolist()
            for place, arm_number in enumerate(order, start=number * len(arms) + 1):
                arms[arm_number].decode(prompt, section["max_new_tokens"])
                until = len(measuring) * place // (len(prompts) * len(arms))
                for measure_block in measuring[done:until]:
                    measure_block()
                done = until
            tell(
                f"profiling: {number + 1} of {counted(len(prompts), 'prompt')} decoded by {counted(len(arms), 'arm')}"
            )


def profile_of(timed: TimedBackend) -> tuple[LatencyProfile, Measured]:
    """What was measured of a backend, and the profile fitted to it."""
    import torch

    from specexp.artifacts.environment import device_name
    from specexp.artifacts.kinds.latency_profile import Measured
    from specexp.core.placement import compute_device
    from specexp.profile.fit import fit_profile, predicted
    from specexp.profile.passes import LanesPass

    pair = timed.backend.pair
    target, draft = (
        timed.passes["target"].points(),
        timed.passes["draft"].points() if "draft" in timed.passes else [],
    )
    place = compute_device(pair.target)
    device = device_name(str(place))
    dtype, draft_dtype = timed.dtypes
    threads = torch.get_num_threads()
    on_cpu = f", {counted(threads, 'thread')}" if place.type == "cpu" else ""
    run_by = f", {timed.name}" if timed.name else ""
    lanes_ms = {
        samples.timed.lanes: {point.tokens: point.ms for point in samples.points()}
        for samples in timed.passes.values()
        if isinstance(samples.timed, LanesPass)
    }
    profile = fit_profile(
        {"name": f"{pair.name} on {device}, {dtype}{on_cpu}{run_by}", "lanes_ms": lanes_ms},
        target,
        draft,
        timed.arms,
    )
    measured = Measured(device, threads, dtype, draft_dtype, target, draft, predicted(profile, timed.arms))
    return profile, measured
