"""Checks that need the whole file: parts together, arms, the search space; and the objects it describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.composition import Parts, check_composition
from specexp.config.annotations import arguments_of
from specexp.config.config import (
    Config,
    apply_overrides,
    check_key,
    compose_arm,
    has_key,
    is_replayed,
    recording_folder,
)
from specexp.config.errors import ConfigError
from specexp.config.layers import PARTS
from specexp.config.methods import METHOD, check_method, overrides_of, with_parts
from specexp.config.schema import OVERRIDES, REFERENCE_KEYS, SPACE_ENTRIES, Experiment, Generation
from specexp.wording import did_you_mean, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specexp.analyses import Analysis
    from specexp.builders import TreeBuilder
    from specexp.config.schema import Reasoning
    from specexp.data import TaskItems, Workload
    from specexp.data.prompts import PromptDataModule
    from specexp.drafters import Drafter
    from specexp.drafters._draft_source import DraftSource
    from specexp.execution import Execution
    from specexp.latency import LatencyProfile
    from specexp.models.pair import ModelPair
    from specexp.verifiers import Verifier

_FIELDS = arguments_of(Experiment) or {}
HITS = "hits.json"
"""What a study's recording is called in its folder."""

_REFERENCE = ("num_assistant_tokens", "assistant_confidence_threshold", "prompt_lookup_num_tokens",
              "max_matching_ngram_size")  # fmt: skip


@dataclass(frozen=True)
class ComposedArm:
    """An arm to run: a composition, or one of Hugging Face's own loops with its arguments."""

    name: str
    title: str
    config: Config
    reference: str | None
    arguments: Mapping[str, Any]
    preload: Config | None = None
    """The same composition over the prompts its drafter learns from before the run."""


def build_parts(config: Config, draft: PreTrainedModel | DraftSource | None = None) -> Parts:
    """New objects of the four parts.

    Args:
        config: of the composition.
        draft: the pair's draft model, or a recording of its answers, for a drafter that needs one.

    Raises:
        ConfigError: a constructor refuses its arguments, the parts do not go together, or a drafter needs a draft
            model and the pair has none.
    """
    check_parts(config)
    parts = Parts(**{name: _build(config, name) for name in PARTS})
    profile = build_latency(config)
    if parts.controller is not None:
        parts.controller.use_latency(None if profile is None else profile.of(parts.drafter, parts.builder))
    if parts.drafter is not None:
        try:
            parts.drafter.use_draft_model(draft)
        except ValueError as error:
            why = first_line(error)
            if draft is None and is_replayed(config):
                why = f"a draft model is asked and {recording_folder(config)} holds none: record with the drafter"
            raise ConfigError(f"{config.source_of(('drafter',))}: drafter: {why}") from error
    return parts


def build_drafter(config: Config) -> Drafter | None:
    """A new drafter alone, without the draft model it may need; None where nothing drafts."""
    drafter: Drafter | None = _build(config, "drafter")
    return drafter


def build_builder(config: Config) -> TreeBuilder:
    """A new builder alone, whatever drafts for it."""
    builder: TreeBuilder = _build(config, "builder")
    return builder


def build_analyses(config: Config) -> list[Analysis]:
    """New analyses of a run.

    Raises:
        ConfigError: a constructor refuses its arguments, or two write the same files.
    """
    analyses: list[Analysis] = _build(config, "analyses")
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


def build_pair(config: Config) -> ModelPair:
    """Load the models.

    Raises:
        ConfigError: a model cannot be loaded, or the vocabularies differ.
    """
    from specexp.models.pair import load_pair

    pair: ModelPair = config.checker.call(load_pair, config.get("pair"), ("pair",))
    return pair


def build_workload(config: Config) -> Workload:
    """Which prompts are decoded; nothing is read."""
    workload: Workload = _build(config, "data")
    return workload


def build_data(config: Config, tokenizer: PreTrainedTokenizerBase) -> PromptDataModule:
    """The prompts, for Lightning's Trainer; nothing is read before its ``setup``."""
    from specexp.data.prompts import PromptDataModule

    return PromptDataModule(build_workload(config), tokenizer)


def build_generation(config: Config) -> Generation:
    """The ``generation:`` section."""
    return Generation(**config.get("generation"))


def build_execution(config: Config) -> Execution | None:
    """How several sequences are decoded for a prompt; None where it is one at a time."""
    execution: Execution | None = _build(config, "execution")
    return execution


def build_reasoning(config: Config) -> Reasoning:
    """The ``reasoning:`` section, with its search."""
    reasoning: Reasoning = _build(config, "reasoning")
    return reasoning


def build_task_items(config: Config) -> TaskItems | None:
    """The tasks of ``data.prompts``; None where they are prompts to be continued."""
    from specexp.data import TaskItems

    prompts = build_workload(config).prompts
    return prompts if isinstance(prompts, TaskItems) else None


def is_grouped(config: Config) -> bool:
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


def arms_of(config: Config) -> list[ComposedArm]:
    """The arms of a file in its order, grids unrolled; without ``arms:``, the composition itself."""
    if not config.get("arms"):
        return [ComposedArm(config.get("name"), config.get("name"), config, None, {})]
    found = []
    for name, arm in config.get("arms").items():
        title, reference = arm.get("title") or name, arm.get("reference")
        arguments = {key: arm[key] for key in REFERENCE_KEYS.get(reference, ()) if key in arm}
        for point in product(
            *([(key, value) for value in values] for key, values in (arm.get("grid") or {}).items())
        ):
            suffix = ", ".join(f"{key.rpartition('.')[2]}={_label(value)}" for key, value in point)
            composed = config if reference else compose_arm(config, name, dict(point))
            found.append(
                ComposedArm(
                    f"{name}[{suffix}]" if suffix else name,
                    f"{title}, {suffix}" if suffix else title,
                    composed,
                    reference,
                    arguments,
                    _preload(composed, name, arm),
                )
            )
    return found


def _preload(composed: Config, name: str, arm: Mapping[str, Any]) -> Config | None:
    if arm.get("preload") is None:
        return None
    source = f"{composed.source_of(('arms', name))}: arms.{name}.preload"
    return apply_overrides(composed, {"data": arm["preload"]}, source)


def check_parts(config: Config) -> None:
    """Refuse parts that do not go together; builds them, without torch for most of our own."""
    drafter, builder, verifier, controller = (_build(config, name) for name in PARTS)
    try:
        check_composition(drafter, builder, verifier, controller)
    except ValueError as error:
        section = "builder" if builder is not None else "drafter"
        raise ConfigError(f"{config.source_of((section,))}: {section}: {first_line(error)}") from error
    profile = None if _awaits_profile(config) else build_latency(config)
    if controller is not None:
        try:
            controller.use_latency(None if profile is None else profile.of(drafter, builder))
        except ValueError as error:
            raise ConfigError(
                f"{config.source_of(('controller',))}: controller: {first_line(error)}"
            ) from error
    execution = build_execution(config)
    if execution is not None:
        _check_execution(config, execution, Parts(drafter, builder, verifier, controller), profile)
    if drafter is not None:
        try:
            drafter.use_draft_model(None)
        except ValueError:  # it runs the pair's draft
            _check_draft_latency(config, profile, type(drafter).__name__)


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
    if type(parts.controller).__name__ == "Oracle":
        raise ConfigError(f"{where} does not go with an Oracle, which must know every output beforehand")


def _check_draft_latency(config: Config, profile: LatencyProfile | None, what: str) -> None:
    if profile is not None and not profile.draft_ms:
        raise ConfigError(
            f"{config.source_of(('latency',))}: latency: {profile.name!r} states no draft_ms, but {what} runs a draft "
            "model: state its milliseconds, or leave it out"
        )


def check_arms(config: Config) -> None:
    """Compose every arm."""
    for name, arm in config.get("arms").items():
        where = f"{config.source_of(('arms', name))}: arms.{name}"
        reference = arm.get("reference")
        for key in arm:
            if reference is not None and (
                key in OVERRIDES
                or key in ("grid", "preload")
                or (key in _REFERENCE and key not in REFERENCE_KEYS[reference])
            ):
                allowed = ", ".join(("title", *REFERENCE_KEYS[reference]))
                raise ConfigError(
                    f"{where}.{key} does not go with reference {reference!r}, which takes {allowed}"
                )
            if reference is None and key in _REFERENCE:
                raise ConfigError(f"{where}.{key} needs a reference, one of {', '.join(REFERENCE_KEYS)}")
        if reference is not None:
            if reference == "hf-assisted":
                _check_draft_latency(config, build_latency(config), f"arm {name!r}")
            continue
        with _inside(where):
            composed = compose_arm(config, name)
            _preload(composed, name, arm)
            for key, values in (arm.get("grid") or {}).items():
                check_key(composed, key, f"{where}.grid")
                if not values:
                    raise ConfigError(f"{where}.grid.{key} is an empty list; at least one value is needed")
                for value in values:
                    check_parts(compose_arm(config, name, {key: value}))
            if not arm.get("grid"):
                check_parts(composed)


def check_sweep(config: Config) -> None:
    """Check the search space against the compositions it leads to, and what is measured before it."""
    sweep = config.get("sweep")
    if sweep is None:
        return
    space = sweep["space"]
    if not space:
        raise config.checker.error(
            ("sweep", "space"), " is empty; at least one dotted key such as builder.init_args.nodes is needed"
        )
    for key, entry in space.items():
        check_space_entry(config, key, entry)
    contexts = [config]
    for key in sorted((key for key in space if "." not in key), key=str):
        contexts = [_try(outer, key, choice, sweep) for outer in contexts for choice in space[key]["choices"]]
    for key, entry in space.items():
        where = config.source_of(("sweep", "space", key)) + ": sweep.space"
        if "." not in key:
            continue
        fitting = [context for context in contexts if has_key(context, key)]
        if not fitting:
            known = {name for context in contexts for name in context.keys()}  # noqa: SIM118
            raise ConfigError(
                f"{where}: {key!r} does not exist in any composition of this space{did_you_mean(key, known)}"
            )
        for context in fitting:
            for name in ("choices",) if "choices" in entry else ("low", "high"):
                source = config.source_of(("sweep", "space", key, name)) + f": sweep.space.{key}"
                for value in entry["choices"] if name == "choices" else (entry[name],):
                    apply_overrides(context, {key: value}, source)
    for number, overrides in enumerate(sweep["enqueue"]):
        source = f"{config.source_of(('sweep', 'enqueue'))}: sweep.enqueue.{number}"
        try:
            overrides = with_parts(overrides, space)
        except LookupError as error:
            method = overrides[METHOD]
            hint = did_you_mean(str(method), error.args[0])
            raise ConfigError(
                f"{source}: method is {method!r}, which sweep.space does not have{hint}"
            ) from error
        known_overrides = {
            key: _with_recorded_hits(value, sweep) for key, value in overrides.items() if key != "name"
        }
        composed = apply_overrides(config, known_overrides, source)
        if not _awaits_hits(composed, sweep):
            check_parts(composed)
    for stage in ("record_hits", "learn", "confirm"):
        if sweep[stage]:
            apply_overrides(
                config, {"data": sweep[stage]["data"]}, f"{config.source_of(('sweep', stage))}: sweep.{stage}"
            )
    if sweep["record_hits"]:
        source = f"{config.source_of(('sweep', 'record_hits'))}: sweep.record_hits"
        check_parts(apply_overrides(config, {"builder": sweep["record_hits"]["builder"]}, source))


@contextmanager
def _inside(where: str) -> Iterator[None]:
    """Name the arm in an error that comes from something it did not set itself."""
    try:
        yield
    except ConfigError as error:
        if where in str(error):
            raise
        raise ConfigError(f"{where}: {str(error).partition(': ')[2]}") from error


def check_space_entry(config: Config, key: str, entry: Mapping[str, Any]) -> None:
    """Check one entry of ``sweep.space``."""
    at = ("sweep", "space", key)
    kind = entry.get("type")
    if kind not in SPACE_ENTRIES:
        hint = did_you_mean(kind, SPACE_ENTRIES)
        raise config.checker.error((*at, "type"), f" is {kind!r}{hint}")
    config.checker.arguments(SPACE_ENTRIES[kind], entry, at)
    if kind == "categorical":
        if not entry["choices"]:
            raise config.checker.error((*at, "choices"), " is empty; at least one choice is needed")
        for choice in entry["choices"] if key == METHOD else ():
            try:
                check_method(choice)
            except ValueError as error:
                raise config.checker.error((*at, "choices"), f": {error}") from error
        return
    sources = [config.source_of((*at, name)) for name in ("low", "high", "log", "step")]
    where = ("command line" if "command line" in sources else sources[0]) + f": {'.'.join(at)}"
    if entry["low"] > entry["high"]:
        raise ConfigError(f"{where}: low {entry['low']} is above high {entry['high']}")
    if entry.get("log") and (entry["low"] <= 0 or entry.get("step") not in (None, 1)):
        raise ConfigError(f"{where}: log: true needs low above 0 and no step, low is {entry['low']}")
    if "." not in key:
        raise config.checker.error(
            (*at, "type"), f" is {kind!r}; a whole part needs type categorical with choices"
        )


def _try(config: Config, key: str, choice: Any, sweep: Mapping[str, Any]) -> Config:
    """The composition with a choice of the space; the parts of a method must go together."""
    source = f"{config.source_of(('sweep', 'space', key))}: sweep.space.{key}"
    if key == METHOD:
        source = f"{source}: {choice['name']}"
    chosen = {part: _with_recorded_hits(value, sweep) for part, value in overrides_of(key, choice).items()}
    composed = apply_overrides(config, chosen, source)
    if key == METHOD and not _awaits_hits(composed, sweep):
        check_parts(composed)
    return composed


def with_hits(value: Any, hits: str) -> Any:
    """A fitted tree that names no hits, or the study's by their bare name, gets ``hits``.

    Args:
        value: of a builder; anything else stays as it is.
        hits: file that the study records first.
    """
    if not isinstance(value, Mapping) or str(value.get("class_path")).rpartition(".")[2] != "FittedTree":
        return value
    arguments = value.get("init_args") or {}
    named = arguments.get("hits", HITS)
    return {**value, "init_args": {**arguments, "hits": hits if named == HITS else named}}


def _with_recorded_hits(value: Any, sweep: Mapping[str, Any]) -> Any:
    return with_hits(value, HITS) if sweep["record_hits"] else value


def _awaits_hits(config: Config, sweep: Mapping[str, Any]) -> bool:
    hits = config.get("builder.init_args.hits", None)
    return bool(sweep["record_hits"]) and hits is not None and not Path(hits).is_file()


def _awaits_profile(config: Config) -> bool:
    """Whether seconds are to be an artifact's that is not measured yet: recording does without."""
    artifact = config.get("latency.artifact", None)
    return is_replayed(config) and artifact is not None and not Path(artifact).exists()


def _build(config: Config, section: str) -> Any:
    return config.checker.build(config.get(section), _FIELDS[section].annotation, (section,))


def _label(value: Any) -> str:
    """A value of a grid in a title; in a list ``1 x 7`` is seven times 1."""
    if isinstance(value, Mapping):
        return str(value.get("name") or value.get("class_path", value))
    if not isinstance(value, list):
        return str(value)
    runs = ((str(entry), len(list(run))) for entry, run in groupby(value))
    return f"[{', '.join(f'{entry} x {count}' if count > 2 else ', '.join([entry] * count) for entry, count in runs)}]"
