"""The arms of an experiment file (its compositions, Hugging Face's loops, plain decoding), and its dry run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from specexp.artifacts.environment import high_load
from specexp.base.cores import usable_cores
from specexp.base.messages import counted, first_line, restated
from specexp.bench.arm import Arm, LearningArm, eos_of
from specexp.bench.arm_spec import ArmSpec, Backend, Preload, can_follow, errors_at, make_arm, why_not
from specexp.bench.metrics import METRICS
from specexp.bench.observers import Observer
from specexp.bench.record import FEWEST_TOKENS
from specexp.config import (
    ComposedArm,
    Config,
    ConfigError,
    arms_of,
    build_analyses,
    build_data,
    build_pair,
    build_parts,
    no_room,
    prompt_errors,
)
from specexp.core.parts import Parts
from specexp.data import LoadedPrompts, Prompt, PromptSetError
from specexp.models.gguf import runs_in_llama_cpp
from specexp.models.pair import ModelPair
from specexp.tracking.names import EAGER, PLAIN

if TYPE_CHECKING:
    from specexp.bench.execution_arm import Solver
    from specexp.bench.live import LiveBackend
    from specexp.config.check import Checker
    from specexp.data import TaskItems
    from specexp.data.task_items import Problem

_SAME_FOR_ALL = ("generation", "latency", "pair")


@dataclass(frozen=True)
class ExperimentArms:
    """The arms of an experiment file."""

    arms: Sequence[Arm]  # plain decoding first, then Hugging Face's, then the file's own
    baselines: Sequence[str]  # names of the arms over which speedups are computed
    # shuffle seeds of arms with their own prompt order, by name; None means the data set's order
    shuffle_seeds: Mapping[str, int | None]
    analyses: Sequence[Observer] = ()  # observers of our arms
    left_out: Sequence[str] = ()  # names of arms that the backend cannot run


def _check_published(published: Sequence[Mapping[str, Any]], checker: Checker) -> None:
    numbers = {"speedup", *(metric.name for metric in METRICS)}
    for number, row in enumerate(published):
        at = ("published", str(number))
        if not isinstance(row.get("method"), str):
            raise checker.error((*at, "method"), " must name the method that the figures belong to")
        for key in sorted(key for key in numbers & row.keys() if isinstance(row[key], str)):
            raise checker.error((*at, key), f" must be a number or null, got {row[key]!r}")


def check_experiment(config: Config) -> list[ComposedArm]:
    """Return the file's arms, after checking them without models or data.

    Raises ConfigError if there is nothing to run, two arms share a title, or an arm overrides a shared section.
    It is also raised if an analysis or arm does not support the number of sequences decoded per prompt.
    """
    _check_published(config.published, config.checker)
    composed = arms_of(config)
    several = config.is_multi_sequence
    verifier = config.verifier
    data = config.get("data")
    for number, analysis in enumerate(build_analyses(config)):
        if analysis.watches_steps is several:
            watched = "watches single steps" if several else "looks at groups of sequences"
            decoded = "groups of sequences" if several else "one at a time"
            why = f" {watched}, and this experiment decodes {decoded}: leave {type(analysis).__name__} out"
            raise config.checker.error(("analyses", str(number)), why)
    plain = is_plain(config)
    if plain and config.sweep is not None:
        winner = f"{config.sweep.export.to if config.sweep.export else 'artifacts/NAME'}/best-tree"
        raise ConfigError(
            f"{config.file}: there is nothing to compare with plain decoding, since the file has a sweep but no arms; "
            f"use python -m specexp.sweep {config.file}, then its winner with --artifact {winner}"
        )
    titles = [PLAIN, *(name for name in baselines_of(config) if name != PLAIN)]
    for arm in composed if not plain else ():
        wrong = None
        other = {**arm.config.get("data"), "shuffle_seed": data["shuffle_seed"]}
        parted = [name for name in _SAME_FOR_ALL if arm.config.get(name) != config.get(name)]
        if arm.reference is not None and several:
            wrong = f": {arm.reference!r} decodes single sequences, and this experiment decodes groups: leave it out"
        elif arm.reference is not None and not can_follow(verifier):
            wrong = f": {why_not(arm.reference, verifier)}: leave the arm out"
        elif arm.title in titles:
            wrong = f".title must be unique, got {arm.title!r}, which another arm has"
        elif parted:
            wrong = (
                f".{parted[0]} must be the experiment's, because arms are compared on the same models and token "
                "counts; run this arm in an experiment of its own"
            )
        elif other != data:
            wrong = ".data may override only shuffle_seed, because all arms decode the same prompts"
        if wrong is not None:
            raise config.checker.error(("arms", arm.name), wrong)
        titles.append(arm.title)
    return composed


def baselines_of(config: Config) -> list[str]:
    """Return the names of the arms that others are compared with. Raises ConfigError if one of them cannot be run."""
    given = config.baselines
    verifier = config.verifier
    follows = can_follow(verifier)
    if given is None:
        foreign = runs_in_llama_cpp(config.pair.target, config.pair.mode)
        return [PLAIN, EAGER] if follows and not foreign else [PLAIN]
    if len(given) > len(set(given)):
        raise config.checker.error(("baselines",), f" must name each baseline once, got {given}")
    if EAGER in given and not follows:
        raise config.checker.error(("baselines",), f": {why_not(EAGER, verifier)}; set baselines to [{PLAIN}]")
    return list(given)


def check_tasks(tasks: TaskItems | None, checker: Checker) -> None:
    """Read the files of reasoning tasks before models are loaded. Raises ConfigError if one cannot be read."""
    key = ("data", "prompts", "init_args", "tasks")
    with restated(ValueError, lambda error: checker.error(key, f": {first_line(error)}")):
        if tasks is not None:
            _ = tasks.problems


def solver_of(config: Config, pair: ModelPair) -> Solver | None:
    """Return what solves the tasks of an experiment; None if one sequence is decoded per prompt.

    Raises PromptSetError if a task's file cannot be read.
    """
    if not config.is_multi_sequence:
        return None
    tasks = config.task_items
    return solver_for(config, pair, {} if tasks is None else tasks.problems)


def solver_for(config: Config, pair: ModelPair, problems: Mapping[str, Problem]) -> Solver:
    """Return what solves these problems, by prompt id, as an experiment is configured."""
    from specexp.bench.execution_arm import Solver

    generation = config.generation
    reasoning = config.reasoning
    data = config.get("data")
    return Solver(
        reasoning.search,
        pair.tokenizer,
        eos_token_ids=eos_of(pair.tokenizer, pair.target) if generation.stop_at_eos else frozenset(),
        stop_at_repetition=generation.stop_at_repetition,
        seed=generation.seed,
        max_new_tokens=reasoning.max_new_tokens,
        chat_template=data["chat_template"] is True,  # a task's prompts are text to continue
        template_arguments=data["chat_template_kwargs"] or {},
        problems=problems,
    )


def is_plain(config: Config) -> bool:
    """Return whether an experiment runs only plain decoding."""
    return not config.get("arms") and config.get("drafter") is None and config.get("engine") is None


def arm_specs(config: Config, backend: Backend, composed: Sequence[ComposedArm] | None = None) -> Iterator[ArmSpec]:
    """Yield the specifications of plain decoding, Hugging Face's loop if it is a baseline, and the file's arms.

    Raises ConfigError if parts cannot be made with the backend's draft model.
    """
    from specexp.scheduling import Serial, SerialSpeculative

    composed = check_experiment(config) if composed is None else composed
    several = config.is_multi_sequence
    shared: dict[str, Any] = {"generation": config.generation}
    if not several:
        shared["latency"] = config.latency
    plain = Parts(verifier=config.verifier)
    yield ArmSpec(PLAIN, parts=plain, execution=Serial() if several else None, **shared)
    if EAGER in baselines_of(config) and not several:
        yield ArmSpec(EAGER, parts=plain, reference=EAGER, **shared)
    for arm in composed if not is_plain(config) else ():
        where = _where(config, arm)
        spec = ArmSpec(arm.title, parts=plain, where=where, **shared)
        if arm.reference is not None:
            yield replace(spec, reference=arm.reference, settings=arm.arguments)
        elif (engine := arm.config.build_engine()) is not None:
            yield replace(spec, engine=engine)
        else:
            execution = None
            if several:
                default = Serial() if arm.config.get("drafter") is None else SerialSpeculative()
                execution = arm.config.execution or default
            with errors_at(where):
                parts = build_parts(arm.config, backend.draft)
            yield replace(spec, parts=parts, execution=execution, preload=_preload_of(arm, backend))


def _where(config: Config, arm: ComposedArm) -> str:
    """Return where an arm is given, as an error's message begins."""
    return f"{config.source_of(('arms', arm.name))}: arms.{arm.name}" if config.get("arms") else str(config.file)


def _preload_of(arm: ComposedArm, backend: Backend) -> Preload | None:
    if arm.preload is None:
        return None
    name = arm.config.name
    specs = {family: arm.config.get(family) for family in Parts._fields}
    made_by = {"study": name, "config": arm.preload.to_dict()}
    return Preload(build_data(arm.preload, backend.tokenizer), specs, arm.config.output / name / "preloaded", made_by)


def build_experiment(config: Config, backend: Backend) -> ExperimentArms:
    """Make the arms. Loops that the backend cannot run are left out.

    Raises ConfigError if :func:`check_experiment` does, if parts and models are incompatible, or if an arm or analysis
    needs models that the backend does not run.
    """
    composed = check_experiment(config)
    analyses = build_analyses(config)
    if backend.pair is None:
        _check_without_models(composed, analyses, config.checker)
    specs = list(arm_specs(config, backend, composed))
    possible = [spec for spec in specs if spec.reference is None or spec.reference in backend.references]
    arms = [make_arm(spec, backend) for spec in possible]
    names = [arm.name for arm in arms]
    seeds = {
        arm.title: arm.config.get("data")["shuffle_seed"]
        for arm in composed
        if arm.title in names and arm.config.get("data") != config.get("data")  # only the seeds may differ
    }
    begin_analyses(analyses, arms, config.checker)
    baselines = [name for name in baselines_of(config) if name in names] or [PLAIN]
    left_out = [spec.name for spec in specs if spec not in possible]
    return ExperimentArms(arms, baselines, seeds, analyses, left_out)


def begin_analyses(analyses: Sequence[Observer], arms: Sequence[Arm], checker: Checker) -> None:
    """Start the analyses before anything is decoded. Raises ConfigError if one names an arm that does not exist."""
    parts = {arm.name: arm.parts for arm in arms if isinstance(arm, LearningArm)}
    for number, analysis in enumerate(analyses):
        try:
            analysis.begin(parts)
        except ValueError as error:
            raise checker.error(("analyses", str(number)), f": {error}") from error


def _check_without_models(composed: Sequence[ComposedArm], analyses: Sequence[Observer], checker: Checker) -> None:
    advice = "leave it out to replay, or set backend to live"
    for number, analysis in enumerate(analyses):
        if analysis.needs_models:
            why = "reads the target's logits or times the models, which a recording does not contain"
            where = ("analyses", str(number))
            raise checker.error(where, f": {type(analysis).__name__} {why}: {advice}")
    for arm in composed:
        if arm.preload is not None:
            why = ".preload decodes other prompts with the models"
            raise checker.error(("arms", arm.name), f"{why}: {advice}")


def reordered(prompts: Sequence[Prompt], shuffle_seed: int | None) -> list[Prompt]:
    """Return the prompts shuffled with ``shuffle_seed``, or in the data set's own order if it is None."""
    ordered = sorted(prompts, key=lambda prompt: prompt.index)
    if shuffle_seed is None:
        return ordered
    return [ordered[place] for place in np.random.default_rng(shuffle_seed).permutation(len(ordered))]


def check_prompts(config: Config, prompts: Sequence[Prompt], pair: ModelPair, one_turn: bool | None = None) -> None:
    """Raise ConfigError if a prompt and its answers do not fit in the target's context.

    ``one_turn`` is whether each prompt must have one turn; by default if several sequences are decoded per prompt.
    """
    # the later prompts of an item depend on earlier answers
    known = prompts if config.task_items is None else ()
    one_turn = config.is_multi_sequence if one_turn is None else one_turn
    check_lengths(known, pair, config.generation.max_new_tokens, config.checker, one_turn=one_turn)


def check_lengths(
    prompts: Sequence[Prompt], pair: ModelPair, most: int, checker: Checker, *, one_turn: bool = False
) -> None:
    """Raise ConfigError unless prompts and their answers, of up to ``most`` tokens per turn, fit in the context."""
    from specexp.core.cache import context_limit

    limit = context_limit(pair.target.config)
    if most > limit:
        raise no_room(checker, most, limit)
    for prompt in prompts if one_turn else ():
        if len(prompt.turns) > 1:
            raise checker.error(
                ("data",),
                f": prompt {prompt.prompt_id!r} has {len(prompt.turns)} turns, but execution decodes "
                "prompts of one turn; choose such a set, or remove execution",
            )
    for prompt in prompts:
        # room for one new token must be left even after the longest answers to earlier turns
        needed = prompt.longest_context(pair.tokenizer, most) - most + 1
        if needed > limit:
            raise checker.error(
                ("data", "prompts"),
                f": prompt {prompt.prompt_id!r} may need {needed} tokens, but the target holds {limit}; set "
                f"data.max_prompt_tokens: {max(len(prompt.token_ids) - needed + limit, 1)} with data.too_long: "
                "keep-last, keep-first or skip",
            )


def few_tokens(config: Config) -> list[str]:
    """Return a remark if the limit on an answer's tokens is too low to measure decoding; otherwise an empty list."""
    most = config.generation.max_new_tokens
    if most >= FEWEST_TOKENS or config.is_multi_sequence:
        return []
    source = config.source_of(("generation", "max_new_tokens"))
    return [f"{source}: max_new_tokens is {most}, but decoding can be measured only from {FEWEST_TOKENS} tokens on."]


def check_engines(config: Config, pair: ModelPair, prompts: Sequence[Prompt]) -> None:
    """Raise ConfigError if an arm's engine cannot decode these prompts with these models, which need no weights."""
    for arm in check_experiment(config):
        engine = arm.config.build_engine() if arm.reference is None else None
        if engine is not None and not engine.lacks():  # missing_engine names what it lacks
            with restated(ValueError, lambda error: ConfigError(f"{_where(config, arm)}: engine: {error}")):  # noqa: B023
                engine.check(pair, longest_context(prompts, pair, config.generation.max_new_tokens))


def longest_context(prompts: Sequence[Prompt], pair: ModelPair, most: int) -> int:
    """Return the number of tokens of the longest prompt and its answer of up to ``most`` tokens per turn."""
    return max(prompt.longest_context(pair.tokenizer, most) for prompt in prompts)


def load_prompts(config: Config, pair: ModelPair) -> LoadedPrompts:
    """Read the prompts. Raises ConfigError if they cannot be read or do not fit in the target's context."""
    data = build_data(config, pair.tokenizer)
    with prompt_errors(config):
        check_prompts(config, data.prompts, pair)
    for sentence in data.workload.preparation.chat_template():
        print(sentence)
    return data


def rehearse(config: Config) -> LiveBackend:
    """Do a dry run: make the arms and read the prompts, using models without weights.

    Raises ConfigError if the trainer, models, parts or prompts cannot be used or do not fit together.
    """
    from specexp.bench.live import LiveBackend
    from specexp.bench.trainer import build_trainer

    check_tasks(config.task_items, config.checker)
    if given := config.get("trainer"):  # importing Lightning takes seconds
        build_trainer(given, config.checker)
    pair = build_pair(config, weights=False)
    prompts = load_prompts(config, pair).prompts
    backend = LiveBackend(pair, solver_of(config, pair))
    arms = []
    composed = check_experiment(config)
    preloads = {arm.title: arm.preload for arm in composed}
    check_engines(config, pair, prompts)
    for spec in arm_specs(config, backend, composed):
        # engines are not made: they need weights to start, and their settings have already been checked
        arms.append(make_arm(replace(spec, preload=None, engine=None), backend))
        arms[-1].close()
        if (preload := preloads.get(spec.name)) is not None:
            try:
                check_prompts(preload, build_data(preload, pair.tokenizer).prompts, pair)
            except PromptSetError as error:
                raise ConfigError(f"{spec.where}.preload: {error}") from error
    begin_analyses(build_analyses(config), arms, config.checker)
    return backend


def use_threads(threads: int | None) -> None:
    """Make torch use this number of threads if it is set."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def warn_of_load(latency: Any) -> None:
    """Print a warning if times are measured (``latency`` is None) on a machine that was busy in the last minute."""
    if latency is None and (load := high_load()):
        cores = counted(usable_cores().number, "core")
        print(
            f"warning: the machine was busy in the last minute (load {load:.1f} on {cores}): if it "
            "still is, times will be too long and too uncertain.",
            file=sys.stderr,
        )
