"""Profiling the device as an experiment file describes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from specexp.bench.arm import EngineArm
from specexp.bench.experiment import arm_specs, check_experiment, use_threads
from specexp.bench.make_arm import make_arm
from specexp.config import (
    Config,
    ConfigError,
    arms_of,
    is_multi_sequence,
)
from specexp.core.messages import counted, first_line
from specexp.profile.passes import sizes_up_to

if TYPE_CHECKING:
    from specexp.artifacts.kinds.latency_profile import Measured
    from specexp.bench.live import LiveBackend
    from specexp.config import ComposedArm
    from specexp.core.latency import LatencyProfile
    from specexp.data import Prompt
    from specexp.profile.passes import PassSamples
    from specexp.profile.steps import TimedSteps

PLAIN_ARM = "plain decoding"
WARM_UP_TOKENS = 8


def check_profiling(config: Config) -> list[ComposedArm]:
    """The arms that are decoded beside plain decoding: all compositions of the file; models and data are not touched.

    Raises:
        ConfigError: the file decodes several sequences for a prompt, or its arms cannot be compared.
    """
    if is_multi_sequence(config):
        raise ConfigError(
            f"{config.source_of(('execution',))}: execution decodes several sequences for a prompt, and a latency "
            "profile is of one: leave it out"
        )
    if not config.get("profile.prefixes"):
        raise config.checker.error(("profile", "prefixes"), " is empty; at least one prefix length is needed")
    if not config.get("arms") and config.get("drafter") is None:
        return []
    check_experiment(config)
    return [arm for arm in arms_of(config) if arm.reference is None and arm.config.get("drafter") is not None]


def check_prefixes(config: Config, backend: LiveBackend) -> None:
    """Refuse prefixes that the models' contexts do not hold; the models may have no weights.

    Raises:
        ConfigError: one sentence with what there is room for.
    """
    from specexp.profile.passes import longest_prefix

    section = config.get("profile")
    models = [backend.model, *([] if backend.draft is None else [backend.draft])]
    limit = min(model.context_limit for model in models)
    try:
        longest = longest_prefix(limit, section["max_tokens"])
    except ValueError as error:
        source = config.source_of(("profile", "max_tokens"))
        raise ConfigError(f"{source}: {first_line(error)}") from error
    for number, prefix in enumerate(section["prefixes"]):
        if prefix > longest:
            raise config.checker.error(
                ("profile", "prefixes", str(number)),
                f" is {prefix}, and before a pass of up to {counted(section['max_tokens'], 'token')} "
                f"(profile.max_tokens) a context of {limit} has room for {longest} at most: lower it",
            )


def measure(
    config: Config,
    backend: LiveBackend,
    prompts: Sequence[Prompt],
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[LatencyProfile, Measured]:
    """Measure passes and decode in turns, so that both meet the same disturbances, and fit the profile.

    Args:
        config: Configuration of the experiment.
        backend: Its models.
        prompts: Prompts that every arm decodes.
        tell: Takes a line for a person as the work goes on.

    Raises:
        ConfigError: the parts do not go with the models, or nothing is left to measure.
    """
    import torch

    from specexp.artifacts.environment import device_name
    from specexp.artifacts.kinds.latency_profile import Measured
    from specexp.profile.fit import fit_profile, predicted

    use_threads(config)
    pair, section, seed = backend.pair, config.get("profile"), config.get("generation.seed")
    with torch.inference_mode():
        passes = _passes(config, backend, prompts)
        arms = _arms(config, backend)
        for samples in passes.values():
            samples.warm_up()
        for arm in arms:
            arm.warm_up(prompts[0], min(WARM_UP_TOKENS, section["max_new_tokens"]))
        blocks = [samples.blocks(section["repeats"]) for samples in passes.values()]
        measuring = list(chain.from_iterable(zip(*blocks, strict=True)))
        done = 0
        for number, prompt in enumerate(prompts):
            order = np.random.default_rng([seed, number]).permutation(len(arms)).tolist()
            for place, arm in enumerate(order, start=number * len(arms) + 1):
                arms[arm].decode(prompt, section["max_new_tokens"])
                until = len(measuring) * place // (len(prompts) * len(arms))
                for measure_block in measuring[done:until]:
                    measure_block()
                done = until
            tell(
                f"profiling: {number + 1} of {counted(len(prompts), 'prompt')} decoded by {counted(len(arms), 'arm')}"
            )
    target, draft = passes["target"].points(), passes["draft"].points() if "draft" in passes else []
    device = device_name(str(pair.target.device))
    dtype = str(pair.target.dtype).removeprefix("torch.")
    threads = torch.get_num_threads()
    on_cpu = f", {counted(threads, 'thread')}" if pair.target.device.type == "cpu" else ""
    name = f"{config.get('pair.target')} on {device}, {dtype}{on_cpu}"
    profile = fit_profile({"name": name}, target, draft, arms)
    draft_dtype = None if pair.draft is None else str(pair.draft.dtype).removeprefix("torch.")
    measured = Measured(device, threads, dtype, draft_dtype, target, draft, predicted(profile, arms))
    return profile, measured


def _passes(config: Config, backend: LiveBackend, prompts: Sequence[Prompt]) -> dict[str, PassSamples]:
    """Of the target and, where there is one, of the draft model, behind the same prefixes."""
    from specexp.drafters import DraftModel
    from specexp.profile.passes import DraftPass, PassSamples, TargetPass, TimedPass

    section = config.get("profile")
    prefixes = sorted(set(section["prefixes"]))
    known = np.fromiter(chain.from_iterable(prompt.token_ids for prompt in prompts), dtype=np.int64)
    text = np.resize(known, prefixes[-1] + 1)  # over again where the prompts are short
    timed: dict[str, TimedPass] = {"target": TargetPass(backend.model, text)}
    if backend.draft is not None:
        timed["draft"] = DraftPass(DraftModel(backend.draft), text)
    sizes = sizes_up_to(section["max_tokens"])
    seed = config.get("generation.seed")
    return {name: PassSamples(one, prefixes, sizes, seed) for name, one in timed.items()}


def _arms(config: Config, backend: LiveBackend) -> list[TimedSteps]:
    """Plain decoding, then every composition of the file; their clock is the device's own."""
    from specexp.profile.steps import TimedSteps

    plain, *others = arm_specs(config)
    drafting = {arm.title for arm in check_profiling(config)}
    specs = [replace(plain, name=PLAIN_ARM), *(spec for spec in others if spec.name in drafting)]
    arms = [make_arm(replace(spec, latency=None), backend) for spec in specs]
    return [TimedSteps(arm) for arm in arms if isinstance(arm, EngineArm)]
