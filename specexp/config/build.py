"""The objects that a composition describes, and whether its parts go together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.config.config import (
    SECTIONS,
    Config,
    is_replayed,
    recording_folder,
)
from specexp.config.layers import PARTS, ConfigError
from specexp.config.schema import Generation
from specexp.core.messages import first_line
from specexp.core.parts import Parts, check_composition

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specexp.config.schema import Reasoning
    from specexp.core.contracts import Controller, Drafter, TreeBuilder, Verifier
    from specexp.core.latency import LatencyProfile
    from specexp.data import PromptSetError, TaskItems, Workload
    from specexp.data.prompts import PromptDataModule
    from specexp.drafters.draft_source import DraftSource
    from specexp.models.pair import ModelPair
    from specexp.scheduling import Execution


def build_parts(config: Config, draft: PreTrainedModel | DraftSource | None = None) -> Parts:
    """New objects of the four parts.

    Args:
        config: of the composition.
        draft: the pair's draft model, or a recording of its answers, for a drafter that needs one.

    Raises:
        ConfigError: a constructor refuses its arguments, the parts do not go together, or a drafter needs a draft
            model and the pair has none.
    """
    parts = _composed(config, build_latency)
    if parts.drafter is not None:
        try:
            parts.drafter.use_draft_model(draft)
        except ValueError as error:
            why = first_line(error)
            if draft is None and is_replayed(config):
                why = f"a draft model is asked and {recording_folder(config)} holds none: record with the drafter"
            raise config.checker.error(("drafter",), f": {why}") from error
    return parts


def build_drafter(config: Config) -> Drafter | None:
    """A new drafter alone, without the draft model it may need; None where nothing drafts."""
    drafter: Drafter | None = _build(config, "drafter")
    return drafter


def build_builder(config: Config) -> TreeBuilder:
    """A new builder alone, whatever drafts for it."""
    builder: TreeBuilder = _build(config, "builder")
    return builder


def build_analyses(config: Config) -> list[Any]:
    """New analyses of a run.

    Raises:
        ConfigError: a constructor refuses its arguments, or two write the same files.
    """
    analyses: list[Any] = _build(config, "analyses")
    names: list[str] = [analysis.name for analysis in analyses]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise config.checker.error(
                ("analyses", str(number)), f" writes {name} as an earlier one does; list an analysis once"
            )
    return analyses


def build_verifier(config: Config) -> Verifier:
    """A new verifier alone: what plain decoding shares with every arm."""
    verifier: Verifier = _build(config, "verifier")
    return verifier


def build_controller(config: Config) -> Controller | None:
    """A new controller alone, whatever drafts; None where the builder's own limits hold."""
    controller: Controller | None = _build(config, "controller")
    return controller


def build_pair(config: Config) -> ModelPair:
    """Load the models.

    Raises:
        ConfigError: a model cannot be loaded, or the vocabularies differ.
    """
    from specexp.models.pair import load_pair

    pair: ModelPair = config.checker.call(load_pair, config.get("pair"), ("pair",))
    return pair


def build_outline(config: Config) -> ModelPair:
    """The models as their files describe them, without weights.

    Raises:
        ConfigError: a model cannot be loaded, or the vocabularies differ.
    """
    from specexp.models.pair import load_pair

    pair: ModelPair = config.checker.call(load_pair, {**config.get("pair"), "weights": False}, ("pair",))
    return pair


def build_workload(config: Config) -> Workload:
    """Which prompts are decoded; nothing is read."""
    workload: Workload = _build(config, "data")
    return workload


def build_data(config: Config, tokenizer: PreTrainedTokenizerBase) -> PromptDataModule:
    """The prompts, for Lightning's Trainer; nothing is read before its ``setup``."""
    from specexp.data.prompts import PromptDataModule

    return PromptDataModule(build_workload(config), tokenizer)


def prompts_error(config: Config, error: PromptSetError) -> ConfigError:
    """What is wrong with prompts, and who named them.

    Args:
        config: Configuration of the experiment.
        error: What the prompt set or the workload said.
    """
    stage = config.source_of(("data", "offset"))
    follows = stage.startswith("sweep.") and config.get(f"{stage}.offset", None) is None
    if error.key == ("offset",) and follows:  # a derived offset: the end of the search's prompts
        return ConfigError(
            f"{stage}: the search and what follows it take all prompts and leave none: lower data.max_prompts, or give "
            f"{stage}.prompts"
        )
    if error.key:
        key = ("data", *error.key)
        if (
            "init_args" in key and config.layers.origin_of(key) is None
        ):  # prompts: my.jsonl is short for its path
            key = key[: key.index("init_args")]
        return config.checker.error(key, f": {error}")
    return ConfigError(
        f"{str(error).removesuffix('.')} (data.prompts, {config.source_of(('data', 'prompts'))})"
    )


def build_generation(config: Config) -> Generation:
    """The ``generation:`` section."""
    return Generation(**config.get("generation"))


def build_execution(config: Config) -> Execution | None:
    """How several sequences are decoded for a prompt; None where it is one at a time."""
    execution: Execution | None = _build(config, "execution")
    return execution


def build_engine(config: Config) -> Any:
    """Somebody else's :class:`~specexp.engines.engine.ForeignEngine`, not started; None where our loop decodes.

    Raises:
        ConfigError: its settings do not go together, or the file asks for what engines of others do not do here:
            sampling, several sequences, a modelled clock, or parts of ours beside it.
    """
    if config.get("engine") is None:
        return None
    where, verifier = f"{config.source_of(('engine',))}: engine: ", build_verifier(config)
    if verifier.noise_temperature != 0 or not verifier.lossless:
        raise ConfigError(
            f"{where}answers are compared token by token, which takes greedy decoding: set verifier to Greedy"
        )
    for section in ("drafter", "builder", "execution", "latency"):
        if config.get(section) is not None:
            raise ConfigError(
                f"{where}{section} is a part of our own loop: set it to null, or leave engine out"
            )
    return _build(config, "engine")


def build_reasoning(config: Config) -> Reasoning:
    """The ``reasoning:`` section, with its search."""
    reasoning: Reasoning = _build(config, "reasoning")
    return reasoning


def build_task_items(config: Config) -> TaskItems | None:
    """The tasks of ``data.prompts``; None where they are prompts to be continued."""
    from specexp.data import TaskItems

    prompts = build_workload(config).prompts
    return prompts if isinstance(prompts, TaskItems) else None


def is_multi_sequence(config: Config) -> bool:
    """Whether several sequences are decoded for every prompt: by one arm at least, and then by all."""
    arms = (config.get("arms") or {}).values()
    return (
        config.get("execution") is not None
        or any((arm or {}).get("execution") is not None for arm in arms)
        or build_task_items(config) is not None
    )


def build_latency(config: Config) -> LatencyProfile | None:
    """The ``latency:`` section; None where seconds are measured."""
    profile: LatencyProfile | None = _build(config, "latency")
    return profile


def check_parts(config: Config) -> None:
    """Refuse parts that do not go together; builds them, without torch for most of our own."""
    _composed(config, lambda config: None if _awaits_profile(config) else build_latency(config))


def _composed(config: Config, latency: Callable[[Config], LatencyProfile | None]) -> Parts:
    """New parts that go together, with the latency they weigh costs by and without a draft model."""
    drafter, builder, verifier, controller = (_build(config, name) for name in PARTS)
    try:
        check_composition(drafter, builder, verifier, controller)
    except ValueError as error:
        section = "builder" if builder is not None else "drafter"
        raise ConfigError(f"{config.source_of((section,))}: {section}: {first_line(error)}") from error
    parts, profile = Parts(drafter, builder, verifier, controller), latency(config)
    if controller is not None:
        try:
            controller.use_latency(None if profile is None else profile.of(parts.label))
        except ValueError as error:
            raise config.checker.error(("controller",), f": {first_line(error)}") from error
    execution = build_execution(config)
    if execution is not None:
        _check_execution(config, execution, parts, profile)
    if drafter is not None:
        try:
            drafter.use_draft_model(None)
        except ValueError:  # it runs the pair's draft
            check_draft_latency(config, profile, type(drafter).__name__)
    return parts


def _check_execution(
    config: Config, execution: Execution, parts: Parts, profile: LatencyProfile | None
) -> None:
    where = f"{config.source_of(('execution',))}: execution"
    try:
        execution.check(parts)
    except ValueError as error:
        raise ConfigError(f"{where}: {first_line(error)}") from error
    if profile is not None and profile.modelled:
        raise ConfigError(
            f"{where} decodes several sequences, whose seconds latency {profile.name!r} cannot model: leave one of the "
            "two out"
        )
    if parts.controller.needs_foresight:
        name = type(parts.controller).__name__
        raise ConfigError(f"{where} does not go with {name}, which must know every output beforehand")


def check_draft_latency(config: Config, profile: LatencyProfile | None, what: str) -> None:
    """Refuse a latency profile that does not state what the draft model costs which ``what`` runs."""
    if profile is not None and not profile.draft_ms:
        raise config.checker.error(
            ("latency",),
            f": {profile.name!r} states no draft_ms, but {what} runs a draft model: state its milliseconds, or leave "
            "it out",
        )


def _awaits_profile(config: Config) -> bool:
    """Whether seconds are to be an artifact's that is not measured yet: recording does without."""
    artifact = config.get("latency.artifact", None)
    return is_replayed(config) and artifact is not None and not Path(artifact).exists()


def _build(config: Config, section: str) -> Any:
    return config.checker.build(config.get(section), SECTIONS[section].annotation, (section,))
