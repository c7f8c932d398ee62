"""Builds the objects that a configuration describes, and checks that parts fit together. Mistakes raise ConfigError."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.base.messages import counted, first_line, restated
from specexp.config.config import Config, is_replayed, recording_folder
from specexp.config.layers import PARTS, ConfigError
from specexp.core.parts import Parts, check_composition
from specexp.models.sources import sources_of, stated_context

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specexp.config.check import Checker
    from specexp.config.schema import Reasoning
    from specexp.core.contracts import Controller, Drafter, TreeBuilder, Verifier
    from specexp.core.latency import LatencyProfile
    from specexp.data import LoadedPrompts, PromptSetError, TaskItems, Workload
    from specexp.drafters.draft_source import DraftSource
    from specexp.models.pair import ModelPair
    from specexp.scheduling import Execution


build_drafter: Callable[[Config], Drafter | None] = methodcaller("section", "drafter")
"""Return a new drafter that is not yet connected to a draft model; None for plain decoding."""
build_controller: Callable[[Config], Controller | None] = methodcaller("section", "controller")
"""Return a new controller, or None if only the builder limits the draft."""
build_builder: Callable[[Config], TreeBuilder] = methodcaller("section", "builder")
build_verifier: Callable[[Config], Verifier] = methodcaller("section", "verifier")
build_workload: Callable[[Config], Workload] = methodcaller("section", "data")
"""Return the workload, i.e. the prompts to decode. Their files are not read yet."""
build_execution: Callable[[Config], Execution | None] = methodcaller("section", "execution")
"""Return the strategy for decoding several sequences per prompt, or None if each prompt has one."""
build_reasoning: Callable[[Config], Reasoning] = methodcaller("section", "reasoning")
build_latency: Callable[[Config], LatencyProfile | None] = methodcaller("section", "latency")
"""Return the latency profile, or None if seconds are measured."""


def build_parts(config: Config, draft: PreTrainedModel | DraftSource | None = None) -> Parts:
    """Return new instances of the four parts.

    Args:
        draft: The pair's draft model, or a recording of it, for a drafter that needs one.
    """
    parts = _composed(config, build_latency)
    if parts.drafter is not None:
        try:
            parts.drafter.use_draft_model(draft)
        except ValueError as error:
            why = first_line(error)
            if draft is None and is_replayed(config):
                why = f"it needs a draft model, but {recording_folder(config)} has none: record with this drafter"
            raise config.checker.error(("drafter",), f": {why}") from error
    return parts


def build_analyses(config: Config) -> list[Any]:
    """Return new analyses of a run. No two of them may write the same file."""
    analyses: list[Any] = config.section("analyses")
    names: list[str] = [analysis.name for analysis in analyses]
    for number, name in enumerate(names):
        if name in names[:number]:
            why = f" writes {name}, which an earlier analysis also writes; list each analysis once"
            raise config.checker.error(("analyses", str(number)), why)
    return analyses


def build_pair(config: Config, weights: bool = True) -> ModelPair:
    """Load the models, or only their configurations if ``weights`` is False."""
    from specexp.models.pair import load_pair

    arguments = {**config.get("pair"), "weights": weights}
    pair: ModelPair = config.checker.call(load_pair, arguments, ("pair",))
    return pair


build_outline: Callable[[Config], ModelPair] = partial(build_pair, weights=False)
"""Return the models without weights, built from their configurations."""


def build_data(config: Config, tokenizer: PreTrainedTokenizerBase) -> LoadedPrompts:
    """Return the prompts of an experiment. Their files are read on first access."""
    from specexp.data import LoadedPrompts

    return LoadedPrompts(build_workload(config), tokenizer)


def check_rows(config: Config, *keys: str) -> list[str]:
    """Raise ConfigError if an experiment has no prompts or no room for them. No models are loaded, which takes seconds.

    Returns a remark for ``data.max_prompts``, and for each of the other ``keys``, if it is set to more than there are.
    """
    limit = stated_context(sources_of(config.pair.target)[0])
    if limit is not None and config.generation.max_new_tokens > limit:
        raise no_room(config.checker, config.generation.max_new_tokens, limit)
    workload = build_workload(config)
    with prompt_errors(config):
        found = len(workload.rows())
    remarks = []
    for dotted in ("data.max_prompts", *keys):
        wanted = config.get(dotted)
        if wanted is not None and wanted > found and config.origin_of(dotted) != "default":
            source, name = config.source_of(tuple(dotted.split("."))), dotted.removeprefix("data.")
            remarks.append(f"{source}: {name} is {wanted}, but only {counted(found, 'prompt')} remain.")
    return remarks


def no_room(checker: Checker, most: int, limit: int) -> ConfigError:
    """Return the error for answers of ``most`` tokens, which exceed the target's context of ``limit`` tokens."""
    why = f" must leave room for the prompt in the target's context of {limit} tokens, got {most}"
    return checker.error(("generation", "max_new_tokens"), why)


@contextmanager
def prompt_errors(config: Config) -> Iterator[None]:
    """Convert errors from a prompt set or workload to ConfigErrors that name the file and key at fault."""
    from specexp.data import PromptSetError

    try:
        yield
    except PromptSetError as error:
        raise _prompts_error(config, error) from error


def _prompts_error(config: Config, error: PromptSetError) -> ConfigError:
    stage = config.source_of(("data", "offset"))
    follows = stage.startswith("sweep.") and config.get(f"{stage}.offset", None) is None
    if error.key == ("offset",) and follows:  # if not set, it defaults to the end of the search's prompts
        rows = counted(len(build_workload(config).prompts.first(None)), "prompt")
        searched = config.get("data.offset")
        return ConfigError(
            f"{config.file}: {stage}: no prompts are left of {rows} after the {searched} of the search: set a lower "
            f"data.max_prompts, or set {stage}.prompts"
        )
    if error.key:
        key = ("data", *error.key)
        if "init_args" in key and key not in config.layers.sources:  # the short form, prompts: my.jsonl
            key = key[: key.index("init_args")]
        return config.checker.error(key, f": {error}")
    return ConfigError(f"{error} (data.prompts, {config.source_of(('data', 'prompts'))})")


def build_engine(config: Config) -> Any:
    """Return an unstarted :class:`~specexp.engines.engine.ForeignEngine`, or None if specexp's own loop decodes.

    Engines do not support sampling, groups of sequences, modelled times or specexp's own parts.
    """
    if config.get("engine") is None:
        return None
    where = f"{config.source_of(('engine',))}: engine: "
    verifier = build_verifier(config)
    if verifier.noise_temperature != 0 or not verifier.lossless:
        raise ConfigError(
            f"{where}outputs are compared token by token, which needs greedy decoding: set verifier to Greedy"
        )
    for section in ("drafter", "builder", "execution", "latency"):
        if config.get(section) is not None:
            raise ConfigError(f"{where}{section} is a part of specexp's own loop: set it or engine to null")
    return config.section("engine")


def missing_engine(config: Config) -> str:
    """Return in a sentence that this machine lacks the engine or a file of it; empty if not, or if there is none."""
    engine = build_engine(config)
    why = "" if engine is None else engine.lacks()
    return why and f"{config.source_of(('engine',))}: engine: {type(engine).__name__} {why}, so it cannot start."


def build_task_items(config: Config) -> TaskItems | None:
    """Return the task items in ``data.prompts``, or None if it contains prompts to continue."""
    from specexp.data import TaskItems

    prompts = build_workload(config).prompts
    return prompts if isinstance(prompts, TaskItems) else None


def is_multi_sequence(config: Config) -> bool:
    """Return whether several sequences are decoded per prompt. If one arm decodes several, all arms do."""
    arms = (config.get("arms") or {}).values()
    executions = (config.get("execution"), *((arm or {}).get("execution") for arm in arms))
    return any(one is not None for one in executions) or build_task_items(config) is not None


def check_parts(config: Config) -> None:
    """Raise a ConfigError if parts do not fit together. They are built for this check, mostly without torch."""

    def latency_of(config: Config) -> LatencyProfile | None:
        artifact = config.get("latency.artifact", None)
        # a replay's profile may be measured after the recording is made
        unmeasured = is_replayed(config) and artifact is not None and not Path(artifact).exists()
        return None if unmeasured else build_latency(config)

    _composed(config, latency_of)


def _composed(config: Config, latency_of: Callable[[Config], LatencyProfile | None]) -> Parts:
    """Return new parts, without a draft model, after checking that they fit together."""
    drafter, builder, verifier, controller = (config.section(name) for name in PARTS)
    try:
        check_composition(drafter, builder, verifier, controller)
    except ValueError as error:
        section = "builder" if builder is not None else "drafter"
        raise config.checker.error((section,), f": {first_line(error)}") from error
    parts = Parts(drafter, builder, verifier, controller)
    profile = latency_of(config)
    if controller is not None:
        with restated(ValueError, lambda error: config.checker.error(("controller",), f": {first_line(error)}")):
            controller.use_latency(None if profile is None else profile.of(parts.label))
    _check_execution(config, parts, profile)
    if drafter is not None:
        try:
            drafter.use_draft_model(None)
        except ValueError:  # the drafter runs the pair's draft model, which takes time
            check_draft_latency(config, profile, type(drafter).__name__)
    return parts


def _check_execution(config: Config, parts: Parts, profile: LatencyProfile | None) -> None:
    execution = build_execution(config)
    if execution is None:
        return
    with restated(ValueError, lambda error: config.checker.error(("execution",), f": {first_line(error)}")):
        execution.check(parts)
        if profile is not None and profile.modelled:
            why = f"the seconds of several sequences cannot be modelled by latency {profile.name!r}"
            raise ValueError(f"{why}: leave execution or latency out")


def check_draft_latency(config: Config, profile: LatencyProfile | None, what: str) -> None:
    """Raise a ConfigError if a latency profile has no times for the draft model that ``what`` runs."""
    if profile is not None and not profile.draft_ms:
        why = f": {profile.name!r} has no draft_ms, but {what} runs a draft model: set draft_ms, or latency to null"
        raise config.checker.error(("latency",), why)
