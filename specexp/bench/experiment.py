"""An experiment file as arms: its compositions, Hugging Face's loops, and plain decoding beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from specexp.config import (
    ComposedArm,
    Config,
    ConfigError,
    arms_of,
    build_analyses,
    build_builder,
    build_execution,
    build_generation,
    build_latency,
    build_pair,
    build_parts,
    build_task_items,
    build_verifier,
    is_grouped,
)
from specexp.core.messages import first_line

if TYPE_CHECKING:
    from specexp.bench.arm import Arm
    from specexp.bench.figures import Curve
    from specexp.core.language_model import LanguageModel
    from specexp.data import Prompt
    from specexp.pairs.pair import ModelPair
    from specexp.papers import Analysis

ENGINE = "engine"
_AXES = {
    "budget": "nodes",
    "max_nodes": "nodes",
    "widths": "nodes",
}  # arguments that say the same of several builders
_SAME_FOR_ALL = ("generation", "latency", "pair")


@dataclass(frozen=True)
class Experiment:
    """What an experiment file asks to run.

    Attributes:
        arms: plain decoding first, then Hugging Face's, then the file's own.
        baselines: arms that speedups are over.
        shuffle_seeds: of arms that take the prompts in another order; None is the set's own order.
        analyses: what watches the arms of the engine.
    """

    arms: Sequence[Arm]
    baselines: Sequence[str]
    shuffle_seeds: Mapping[str, int | None]
    analyses: Sequence[Analysis] = ()


def check_experiment(config: Config) -> list[ComposedArm]:
    """The file's arms, checked; models and data are not touched.

    Raises:
        ConfigError: there is nothing to run, two arms share a title, an arm overrides what all must share, or an
            analysis cannot be made.
    """
    composed = arms_of(config)
    _check_group(config, composed, build_analyses(config))
    if not config.get("arms") and config.get("drafter") is None and config.get("sweep") is not None:
        raise ConfigError(
            f"{config.file}: its composition is plain decoding and it has no arms, but a sweep: "
            f"use python -m specexp.sweep {config.file}"
        )
    titles = [ENGINE, *(name for name in config.get("baselines") if name != ENGINE)]
    for arm in composed if not is_plain(config) else ():
        where = f"{config.source_of(('arms',))}: arms.{arm.name}"
        if arm.title in titles:
            raise ConfigError(
                f"{where} is called {arm.title!r} as another arm is; give it a title of its own"
            )
        titles.append(arm.title)
        for section in _SAME_FOR_ALL:
            if arm.config.get(section) != config.get(section):
                raise ConfigError(
                    f"{where}.{section} differs from the experiment's, but arms are compared on the same "
                    "models and token counts; give it a run of its own"
                )
        other = {**arm.config.get("data"), "shuffle_seed": config.get("data.shuffle_seed")}
        if other != config.get("data"):
            raise ConfigError(
                f"{where}.data may override shuffle_seed alone: all arms decode the same prompts"
            )
    return composed


def _check_group(config: Config, composed: Sequence[ComposedArm], analyses: Sequence[Analysis]) -> None:
    """What decodes several sequences for a prompt shows time lines instead of single steps."""
    grouped = is_grouped(config)
    for number, analysis in enumerate(analyses):
        if analysis.watches_steps is grouped:
            where = f"{config.source_of(('analyses', str(number)))}: analyses.{number}"
            what = "watches single steps" if grouped else "looks at groups of sequences"
            raise ConfigError(
                f"{where} {what}, and this experiment decodes {'groups of sequences' if grouped else 'one at a time'}: "
                f"leave {type(analysis).__name__} out"
            )
    for arm in composed if grouped else ():
        if arm.reference is not None:
            where = f"{config.source_of(('arms', arm.name))}: arms.{arm.name}"
            raise ConfigError(
                f"{where}: {arm.reference!r} decodes one sequence at a time, and this experiment groups of them: "
                "leave it out"
            )


def check_tasks(config: Config) -> None:
    """Read the files of reasoning tasks, if there are any: it takes a moment, and loading models takes seconds.

    Raises:
        ConfigError: one cannot be read, with file and line.
    """
    tasks = build_task_items(config)
    try:
        _ = None if tasks is None else tasks.problems
    except ValueError as error:
        source = config.source_of(("data", "prompts", "init_args", "tasks"))
        raise ConfigError(f"{source}: data.prompts.init_args.tasks: {first_line(error)}") from error


def is_plain(config: Config) -> bool:
    """Whether plain decoding is all that there is to run."""
    return not config.get("arms") and config.get("drafter") is None


def build_experiment(config: Config, pair: ModelPair | None = None) -> Experiment:
    """Load the models and compose the arms.

    Args:
        config: of the file.
        pair: models loaded already; the file's own if None.

    Raises:
        ConfigError: as :func:`check_experiment`, or the parts do not go with the models.
    """
    composed = check_experiment(config)
    pair = pair or build_pair(config)
    try:
        return _build(config, composed, pair)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{config.file}: {first_line(error)}") from error


def _build(config: Config, composed: Sequence[ComposedArm], pair: ModelPair) -> Experiment:
    from specexp.bench.decoder_arm import DecoderArm
    from specexp.bench.hugging_face_arm import HuggingFaceArm
    from specexp.bench.preload import preloaded_drafter
    from specexp.core.decoder import Decoder
    from specexp.core.language_model import LanguageModel

    generation = build_generation(config)
    model = LanguageModel(pair.target)  # one cache and one self-check for all arms of the engine
    verifier = build_verifier(config)
    if is_grouped(config):
        return _build_grouped(config, composed, pair, model)
    latency = build_latency(config)
    plain = Decoder(model, verifier=verifier)
    arms: list[Arm] = [DecoderArm(ENGINE, plain, pair.tokenizer, generation, latency=latency)]
    baselines = list(config.get("baselines"))
    if "hf-eager" in baselines:
        arms.append(
            HuggingFaceArm(
                "hf-eager",
                "hf-eager",
                pair.target,
                pair.tokenizer,
                generation,
                verifier,
                latency=latency,
            )
        )
    seeds: dict[str, int | None] = {}
    for arm in composed if not is_plain(config) else ():
        if arm.reference is not None:
            arms.append(
                HuggingFaceArm(
                    arm.title,
                    arm.reference,  # type: ignore[arg-type]
                    pair.target,
                    pair.tokenizer,
                    generation,
                    verifier,
                    pair.draft,
                    latency=latency,
                    **arm.arguments,
                )
            )
            continue
        parts = build_parts(arm.config, pair.draft)
        learned = None
        if arm.preload is not None:
            parts = parts._replace(drafter=preloaded_drafter(arm, parts, model, pair))
            learned = None if parts.controller is None else deepcopy(parts.controller.state_dict())
        decoder = Decoder(model, *parts)
        arms.append(
            DecoderArm(
                arm.title, decoder, pair.tokenizer, generation, latency=latency, controller_state=learned
            )
        )
        if arm.config.get("data.shuffle_seed") != config.get("data.shuffle_seed"):
            seeds[arm.title] = arm.config.get("data.shuffle_seed")
    analyses = build_analyses(config)
    for analysis in analyses:  # one that asks for an arm there is not says so before anything is decoded
        analysis.begin({arm.name: arm.parts for arm in arms if isinstance(arm, DecoderArm)})
    return Experiment(arms, baselines or [ENGINE], seeds, analyses)


def _build_grouped(
    config: Config, composed: Sequence[ComposedArm], pair: ModelPair, model: LanguageModel
) -> Experiment:
    """Every arm decodes several sequences for a prompt; plain decoding does so one by one."""
    from specexp.bench.execution_arm import ExecutionArm
    from specexp.bench.groups import Groups
    from specexp.bench.preload import preloaded_drafter
    from specexp.core.parts import Parts
    from specexp.scheduling import Serial, SerialSpeculative

    groups = Groups(config, pair, model)
    seeds: dict[str, int | None] = {}
    arms: list[Arm] = [groups.arm(ENGINE, Serial(), Parts(None, None, build_verifier(config)))]
    for arm in composed if not is_plain(config) else ():
        parts = build_parts(arm.config, pair.draft)
        learned = None
        if arm.preload is not None:
            parts = parts._replace(drafter=preloaded_drafter(arm, parts, model, pair))
            learned = None if parts.controller is None else deepcopy(parts.controller.state_dict())
        default = Serial() if parts.drafter is None else SerialSpeculative()
        execution = build_execution(arm.config) or default
        arms.append(groups.arm(arm.title, execution, parts, learned))
        if arm.config.get("data.shuffle_seed") != config.get("data.shuffle_seed"):
            seeds[arm.title] = arm.config.get("data.shuffle_seed")
    analyses = build_analyses(config)
    for analysis in analyses:
        analysis.begin({arm.name: arm.parts for arm in arms if isinstance(arm, ExecutionArm)})
    return Experiment(arms, [ENGINE], seeds, analyses)


def reordered(prompts: Sequence[Prompt], shuffle_seed: int | None) -> list[Prompt]:
    """The same prompts in the set's own order, or in another fixed order.

    Args:
        prompts: of a run.
        shuffle_seed: of the order; None for the set's own.
    """
    import numpy as np

    ordered = sorted(prompts, key=lambda prompt: prompt.index)
    if shuffle_seed is None:
        return ordered
    return [ordered[place] for place in np.random.default_rng(shuffle_seed).permutation(len(ordered))]


def check_prompts(config: Config, prompts: Sequence[Prompt], pair: ModelPair) -> None:
    """Refuse prompts that do not fit the target, before anything is decoded.

    Raises:
        ConfigError: one sentence that names the prompt and what to set.
    """
    if build_task_items(config) is not None:
        return  # what is asked of an item depends on the answers before
    for prompt in prompts if is_grouped(config) else ():
        if len(prompt.turns) > 1:
            raise ConfigError(
                f"{config.source_of(('data',))}: data: prompt {prompt.prompt_id!r} has {len(prompt.turns)} turns, and "
                "the sequences of a group continue one; take a set of single questions, or leave execution out"
            )
    from specexp.core.context_limit import context_limit

    limit = context_limit(pair.target.config)
    most = config.get("generation.max_new_tokens")
    for prompt in prompts:
        # room for one new token must be left even after the longest answers to earlier turns
        needed = prompt.longest_context(pair.tokenizer, most) - most + 1
        if needed > limit:
            raise ConfigError(
                f"{config.source_of(('data',))}: data: prompt {prompt.prompt_id!r} may take {needed} tokens "
                f"and the target holds {limit}; set data.max_prompt_tokens with data.too_long: truncate"
            )


def curves_of(config: Config) -> list[Curve]:
    """The arms that sweep one number: a ``grid`` of one key with numeric values, or with lists that shape a tree, which
    stand at its nodes.
    """
    from specexp.bench.figures import Curve

    composed, curves = arms_of(config), []
    start = 0
    for name, arm in (config.get("arms") or {}).items():
        grid: dict[str, list[Any]] = arm.get("grid") or {}
        count = prod(len(values) for values in grid.values())
        points = composed[start : start + count]
        start += count
        if len(grid) != 1 or count < 2:
            continue
        ((key, values),) = grid.items()
        argument = key.rpartition(".")[2]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            places = [float(value) for value in values]
        elif key.startswith("builder.init_args.") and all(isinstance(value, list) for value in values):
            places = [float(build_builder(point.config).max_nodes) for point in points]
        else:
            continue
        titles = [(place, point.title) for place, point in zip(places, points, strict=True)]
        curves.append(Curve(arm.get("title") or name, _AXES.get(argument, argument), titles))
    return curves
