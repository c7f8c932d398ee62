"""Builds the objects that a configuration describes, and checks that parts fit together. Mistakes raise ConfigError."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.base.messages import counted, first_line, restated
from specexp.config.config import Config
from specexp.config.layers import PARTS, ConfigError
from specexp.core.parts import Parts, check_composition
from specexp.models.sources import sources_of, stated_context

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specexp.config.check import Checker
    from specexp.core.latency import LatencyProfile
    from specexp.data import LoadedPrompts, PromptSetError
    from specexp.drafters.draft_source import DraftSource
    from specexp.models.pair import ModelPair


def build_parts(config: Config, draft: PreTrainedModel | DraftSource | None = None) -> Parts:
    """Return new instances of the four parts.

    Args:
        draft: The pair's draft model, or a recording of it, for a drafter that needs one.
    """
    parts = _composed(config, attrgetter("latency"))
    if parts.drafter is not None:
        try:
            parts.drafter.use_draft_model(draft)
        except ValueError as error:
            why = first_line(error)
            if draft is None and config.is_replayed:
                why = f"it needs a draft model, but {config.recording_folder} has none: record with this drafter"
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


def build_data(config: Config, tokenizer: PreTrainedTokenizerBase) -> LoadedPrompts:
    """Return the prompts of an experiment. Their files are read on first access."""
    from specexp.data import LoadedPrompts

    return LoadedPrompts(config.workload, tokenizer)


def check_rows(config: Config, *keys: str) -> list[str]:
    """Raise ConfigError if an experiment has no prompts or no room for them. No models are loaded, which takes seconds.

    Returns a remark for ``data.max_prompts``, and for each of the other ``keys``, if it is set to more than there are.
    """
    limit = stated_context(sources_of(config.pair.target)[0])
    if limit is not None and config.generation.max_new_tokens > limit:
        raise no_room(config.checker, config.generation.max_new_tokens, limit)
    workload = config.workload
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
        rows = counted(len(config.workload.prompts.first(None)), "prompt")
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


def missing_engine(config: Config) -> str:
    """Return in a sentence that this machine lacks the engine or a file of it; empty if not, or if there is none."""
    engine = config.build_engine()
    why = "" if engine is None else engine.lacks()
    return why and f"{config.source_of(('engine',))}: engine: {type(engine).__name__} {why}, so it cannot start."


def check_parts(config: Config) -> None:
    """Raise a ConfigError if parts do not fit together. They are built for this check, mostly without torch."""

    def latency_of(config: Config) -> LatencyProfile | None:
        artifact = config.get("latency.artifact", None)
        # a replay's profile may be measured after the recording is made
        unmeasured = config.is_replayed and artifact is not None and not Path(artifact).exists()
        return None if unmeasured else config.latency

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
    execution = config.execution
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
