"""Loads an experiment file: composes it, applies overrides, and checks it with its arms and sweep stages.

All mistakes raise :class:`ConfigError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any

from specexp.base.checked import arguments_of, import_object
from specexp.base.messages import did_you_mean, restated
from specexp.config.build import (
    check_draft_latency,
    check_parts,
    prompt_errors,
)
from specexp.config.check import find_part
from specexp.config.config import Config
from specexp.config.layers import COMMAND_LINE, PARTS, ConfigError, Key, SourceOf, parse_overrides, read_layers
from specexp.config.schema import OVERRIDES, REFERENCE_KEYS
from specexp.config.sweep import FUNCTION, METHOD, STAGES, Categorical, Known, Suggested, Sweep, overrides_of
from specexp.core.contracts import TreeBuilder
from specexp.models.sources import sources_of

# a study's files with acceptance counts and step costs
COUNTS, COSTS = "acceptance_counts.json", "step_ms.json"


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read, compose, override and check a YAML file.

    Args:
        overrides: ``--dotted.key value`` or ``--dotted.key=value``; later ones take precedence.

    Example:
        >>> load_config("experiments/tree_shape.yaml", ["--generation.seed", "1"])  # doctest: +SKIP
    """
    config = Config(read_layers(path, overrides), str(path))
    config.typed = parse_overrides(overrides)
    _check_replay(config)
    # a search over whole parts may leave the file's own composition incomplete
    if not (config.get("sweep") or {}).get("space", {}).keys() & {"builder", "drafter", METHOD}:
        check_parts(config)
    _check_arms(config)
    check_samples(config)
    _check_sweep(config)
    return config


def _check_replay(config: Config) -> None:
    """Raise a ConfigError if the experiment cannot be replayed, or names a recording that it does not use."""
    if not config.is_replayed:
        recording = config.get("recording")
        if recording is not None and config.get("what_if") is None:
            why = f" is {recording!r} and backend is live: set backend to replay, or leave recording out"
            raise config.checker.error(("recording",), why)
        return
    where = f"{config.source_of(('backend',))}: backend is replay"
    sweep = config.get("sweep") or {"space": {}, "enqueue": []}
    keys = [*sweep["space"], *(key for known in sweep["enqueue"] for key in known)]
    if config.is_multi_sequence or any(key.partition(".")[0] == "execution" for key in keys):
        raise ConfigError(
            f"{where}, which cannot time how several sequences of a prompt overlap: leave execution and TaskItems out, "
            "or set backend to live"
        )
    if config.get("latency") is None:
        raise ConfigError(
            f"{where}, which needs a latency profile to model times, but latency is null: measure one with python -m "
            "specexp.profile and set its artifact, or write one by hand as in configs/latency"
        )


def with_prompts_of(config: Config, stage: str | None) -> Config:
    """Return the experiment with the prompts of one stage of its sweep (see :data:`STAGES`; None for the search).

    A stage that sets neither ``prompts`` nor ``offset`` takes further prompts from the search's prompt set. The
    confirmation's come last, so that it gets fewer if the set is too small for all stages.
    """
    if stage is None:
        return config
    own = prompts_of_stage(config.get("data"), config.get("sweep"), stage, config.file)
    return config.with_overrides({"data": own}, f"sweep.{stage}.data")


def prompts_of_stage(search: Mapping[str, Any], sweep: Mapping[str, Any], stage: str, file: str) -> dict[str, Any]:
    """Return a stage's overrides of ``data``, from the resolved sections ``data`` and ``sweep`` of a file."""
    own = dict(sweep[stage]["data"])
    if "prompts" in own:
        own.setdefault("field", None)  # the search's field may not exist in this stage's file
    elif "offset" not in own:
        if search["max_prompts"] is None:
            raise ConfigError(
                f"{file}: data.max_prompts is null, so the search takes all prompts: set it, or give "
                f"sweep.{stage} its own prompts"
            )
        own["offset"] = search["offset"] + search["max_prompts"]
        if stage == "confirm":
            others = [(sweep.get(one) or {}).get("data") for one in STAGES if one != "confirm"]
            taken = [one for one in others if one is not None and not one.keys() & {"prompts", "offset"}]
            own["offset"] += max((int(one.get("max_prompts") or search["max_prompts"]) for one in taken), default=0)
    return own


@dataclass(frozen=True)
class ComposedArm:
    """An arm to run: a composition, or one of Hugging Face's own loops with its arguments.

    Attributes:
        preload: The same composition with the prompts that its drafter learns from before the run.
    """

    name: str
    title: str
    config: Config
    reference: str | None
    arguments: Mapping[str, Any]
    preload: Config | None = None


def arms_of(config: Config) -> list[ComposedArm]:
    """Return the arms in file order, one per grid point. Without ``arms:``, the file's composition is the only arm."""
    if not config.get("arms"):
        return [ComposedArm(config.name, config.name, config, None, {})]
    found = []
    for name, arm in config.get("arms").items():
        title, reference = arm.get("title") or name, arm.get("reference")
        arguments = {key: arm[key] for key in REFERENCE_KEYS.get(reference, ()) if key in arm}
        grid = ([(key, value) for value in values] for key, values in (arm.get("grid") or {}).items())
        for point in product(*grid):
            suffix = ", ".join(f"{key.rpartition('.')[2]}={_label(value)}" for key, value in point)
            composed = config if reference else _compose_arm(config, name, dict(point))
            label, shown = (f"{name}[{suffix}]", f"{title}, {suffix}") if suffix else (name, title)
            preload = _preload(composed, name, arm)
            found.append(ComposedArm(label, shown, composed, reference, arguments, preload))
    return found


def _compose_arm(config: Config, name: str, extra: Mapping[str, Any]) -> Config:
    """Return the composition for one entry in ``arms:``, with the ``extra`` overrides for one grid point applied."""
    arm = config.get("arms")[name]
    overrides = {key: arm[key] for key in OVERRIDES if key in arm}
    return config.with_overrides({**overrides, **extra}, _source(config, ("arms", name)))


def _preload(composed: Config, name: str, arm: Mapping[str, Any]) -> Config | None:
    if arm.get("preload") is None:
        return None
    source = f"{composed.source_of(('arms', name))}: arms.{name}.preload"
    return composed.with_overrides({"data": arm["preload"]}, source)


def _check_arms(config: Config) -> None:
    """Compose every arm, raising a ConfigError for an invalid one."""
    for name, arm in config.get("arms").items():
        where = f"{config.source_of(('arms', name))}: arms.{name}"
        if not name.strip() or not str(arm.get("title") or name).strip():
            raise config.checker.error(("arms",), f" must have names, got {name!r}")
        if arm.get("reference") == "hf-assisted":
            check_draft_latency(config, config.latency, f"arm {name!r}")
        if arm.get("reference") is not None:
            continue
        with _inside(where, f"arms.{name}"):
            own = composed = _compose_arm(config, name, {})
            _preload(own, name, arm)
            for key, values in (arm.get("grid") or {}).items():
                if not own.has(key):
                    hint = did_you_mean(key, own.keys())
                    raise ConfigError(f"{where}.grid: {key!r} does not exist in this composition{hint}")
                if not values:
                    raise ConfigError(f"{where}.grid.{key} must have at least one value, got []")
                for value in values:
                    composed = _compose_arm(config, name, {key: value})
            check_parts(composed)
            composed.build_engine()


def check_samples(config: Config) -> None:
    """Raise a ConfigError for several samples of a prompt if no arm draws them at random."""
    if config.get("artifact") is not None:
        return  # with_artifact puts in its verifier
    samples = config.generation.samples
    if samples > 1 and all(arm.config.verifier.noise_temperature == 0 for arm in arms_of(config)):
        name = type(config.verifier).__name__
        why = f" must be 1 with the verifier {name}, which returns the same text every time, got {samples}"
        raise config.checker.error(("generation", "samples"), why)


@contextmanager
def _inside(where: str, arm: str) -> Iterator[None]:
    """Add the arm's name to an error about a value that was set outside the arm."""
    try:
        yield
    except ConfigError as error:
        if f": {arm}" in str(error):
            raise
        raise ConfigError(f"{where}: {str(error).partition(': ')[2]}") from error


def _label(value: Any) -> str:
    """Return a grid value as text. In a list, ``1 x 7`` means 1 repeated seven times."""
    if isinstance(value, Mapping):
        return str(value.get("name") or value.get("class_path", value))
    if not isinstance(value, list):
        return str(value)
    runs = [(str(entry), len(list(run))) for entry, run in groupby(value)]
    shown = (f"{entry} x {count}" if count > 2 else ", ".join([entry] * count) for entry, count in runs)
    return f"[{', '.join(shown)}]"


def _check_sweep(config: Config) -> None:
    """Check the search space in all of its compositions, and the configurations in ``enqueue``."""
    sweep = config.sweep
    if sweep is None:
        return
    config.build_engine()
    contexts = _contexts(config, sweep)
    for key, entry in sweep.space.items():
        if "." not in key or isinstance(entry, Suggested):
            continue
        fitting = [context for context in contexts if context.has(key)]
        if fitting and all(context.get(key) is None for context in fitting) and key.startswith("engine."):
            why = ": no engine of this space sets it, so it would never be drawn: set it in one, or leave it out"
            raise config.checker.error(("sweep", "space", key), why)
        if not fitting:
            hint = did_you_mean(key, {name for context in contexts for name in context.keys()})  # noqa: SIM118
            raise ConfigError(
                f"{config.source_of(('sweep', 'space', key))}: sweep.space: {key!r} does not exist in any composition "
                f"of this space{hint}"
            )
        if isinstance(entry, Categorical):
            values = [("choices", choice) for choice in entry.choices]
        else:
            values = [("low", entry.low), ("high", entry.high)]
        for name, value in values:
            source = f"{config.source_of(('sweep', 'space', key, name))}: sweep.space.{key}"
            for context in fitting:  # the extremes of a range represent all its values
                _check_comparable(config, context.with_overrides({key: value}, source), source)
    for number, known in enumerate(sweep.known):
        at = ("sweep", "enqueue", str(number))
        composed = _known(config, sweep, known, _source(config, at))
        _check_comparable(config, composed, str(config.checker.error(at, f": {known.name}")))
        if not awaits_counts(composed, sweep):  # the builder cannot be built until its counts exist
            check_parts(composed)
    for stage in sweep.stages:
        found = {"data": getattr(sweep, stage).data}
        config.with_overrides(found, _source(config, ("sweep", stage)))
    if sweep.count_acceptances is not None:
        counted = {"builder": sweep.count_acceptances.builder}
        check_parts(config.with_overrides(counted, _source(config, ("sweep", "count_acceptances"))))


def _contexts(config: Config, sweep: Sweep) -> list[Config]:
    """Return one composition for each combination of the whole parts in the search space."""
    contexts = [config]
    for key, entry in sorted(sweep.space.items()):
        if "." not in key and isinstance(entry, Categorical):
            contexts = [_chosen(outer, key, one, sweep) for outer in contexts for one in entry.choices]
    return contexts


def _known(config: Config, sweep: Sweep, known: Known, source: str | SourceOf) -> Config:
    """Return the composition of a known configuration."""
    overrides = {key: _with_own_counts(value, sweep) for key, value in known.overrides.items()}
    return config.with_overrides(overrides, source)


def check_typed_parts(config: Config, sweep: Sweep) -> None:
    """Raise a ConfigError for an override on the command line that the search space replaces in every trial."""
    typed = [dotted for dotted, _ in config.typed if dotted.partition(".")[0] in (*PARTS, "execution")]
    if not typed or FUNCTION in sweep.space:
        return
    contexts = _contexts(config, sweep)
    known = [(one.overrides, _known(config, sweep, one, "sweep")) for one in sweep.known]
    for dotted in typed:
        steps = tuple(config.layers.split(dotted))

        def remains(composed: Config, steps: Key = steps) -> bool:
            sources = composed.layers.sources.items()
            return any(key[: len(steps)] == steps and source == COMMAND_LINE for key, source in sources)

        searched = dotted in sweep.space or not any(map(remains, contexts))
        if searched and not any(dotted not in overrides and remains(composed) for overrides, composed in known):
            raise ConfigError(
                f"{COMMAND_LINE}: --{dotted} must be left out or sweep.space changed, because every trial sets it anew"
            )


def _check_comparable(config: Config, candidate: Config, where: str) -> None:
    """Raise a ConfigError that begins with ``where`` if a candidate's engine is not plain decoding's but for drafts."""
    if candidate.get("engine") is None:
        return
    if config.get("engine") is None:
        raise ConfigError(f"{where}: engine must be set outside of sweep too, since it decodes plainly, got null")
    plain, engine = config.section("engine"), _built_engine(candidate)
    if type(engine) is not type(plain):
        return  # it cannot be built, or is another engine
    for name, value in vars(plain).items():
        if name not in plain.varied and (own := getattr(engine, name)) != value:
            why = f"must be {value}, as for plain decoding, to which it is compared, got {own}"
            key = "concurrency" if name == "loads" else name
            raise ConfigError(f"{where}: engine.init_args.{key} {why}")


def _built_engine(config: Config) -> Any:
    """Return a candidate's engine, or None if it cannot be built, so that the study leaves the candidate out."""
    try:
        return config.section("engine")
    except ConfigError:
        return None


def _source(config: Config, at: Key) -> SourceOf:
    """Return a function that gives the source of overrides at a key of the file, for error messages."""
    return lambda key: f"{config.source_of((*at, *key))}: {'.'.join(at)}"


def _chosen(config: Config, key: str, choice: Any, sweep: Sweep) -> Config:
    """Return the composition with one choice of the space applied, checking that a method's parts fit together."""
    source = f"{config.source_of(('sweep', 'space', key))}: sweep.space.{key}"
    source += f": {choice['name']}" if key == METHOD else ""
    overrides = {part: _with_own_counts(value, sweep) for part, value in overrides_of(key, choice).items()}
    composed = config.with_overrides(overrides, source)
    if key == METHOD and not awaits_counts(composed, sweep):
        check_parts(composed)
    if key == "engine":
        _check_comparable(config, composed, f"{source}: {_label(choice)}")
    return composed


def with_counts(value: Any, counts: str) -> Any:
    """Return a builder's specification, with ``counts`` as its acceptance counts if they are missing or :data:`COUNTS`.

    Any other value is returned unchanged.
    """
    name = value.get("class_path") if isinstance(value, Mapping) else None
    if not isinstance(name, str):
        return value
    try:
        component = import_object(name) if "." in name else find_part(TreeBuilder, name)
    except (ImportError, AttributeError):
        return value  # the check of the part reports it
    if component is None or "acceptance_counts" not in (arguments_of(component) or {}):
        return value
    arguments = {"acceptance_counts": COUNTS, **(value.get("init_args") or {})}
    if arguments["acceptance_counts"] == COUNTS:
        arguments["acceptance_counts"] = counts
        if arguments.get("nodes", 1) is None:
            arguments["step_ms"] = str(Path(counts).with_name(COSTS))
    return {**value, "init_args": arguments}


def _with_own_counts(value: Any, sweep: Sweep) -> Any:
    return with_counts(value, COUNTS) if sweep.count_acceptances is not None else value


def awaits_counts(config: Config, sweep: Sweep) -> bool:
    """Return whether the builder needs a file of counts that the study has yet to write."""
    counts = config.get("builder.init_args.acceptance_counts", None)
    return sweep.count_acceptances is not None and counts is not None and not Path(counts).is_file()


def with_artifact(config: Config) -> Config:
    """Return the experiment with the parts of its ``artifact``, if it has one, and without arms or a search.

    Like the parts of a file, these start without learned state.
    """
    path = config.get("artifact")
    if path is None:
        return config
    from specexp.artifacts import ArtifactError
    from specexp.config.artifacts import load_artifact

    where = f"{config.source_of(('artifact',))}: artifact: "
    trust = config.get("trust")
    with restated(ArtifactError, lambda error: ConfigError(f"{where}{error}")):
        artifact = load_artifact(path, [trust] if isinstance(trust, str) else trust)
    if artifact.plain:
        raise ConfigError(f"{where}{path} means plain decoding, so there is nothing to compare: use best-tree instead")
    specs = artifact.specs()
    if "drafter" not in specs or "builder" not in specs:
        servers = f"; verify {path} --for ENGINE, or --endpoint URL --plain URL, compares servers"
        hint = servers if artifact.kind == "engine-settings" else ""
        raise ConfigError(f"{where}{path} must have a drafter and a builder, got kind {artifact.kind!r}{hint}")
    wrong = f" must be the artifact's model, got {config.pair.target!r}"
    with restated(ArtifactError, lambda error: config.checker.error(("pair", "target"), f"{wrong}: {error}")):
        artifact.check_saved(sources_of(config.pair.target)[0])  # before torch is imported, which takes seconds
    parts = {family: spec for family, spec in specs.items() if family in OVERRIDES and family != "execution"}
    without = config.layers.copy()
    without.values.pop("arms", None)  # an override would be merged with them
    found = Config(without, config.file, config, ("arms",))
    found = found.with_overrides({**parts, "artifact": None, "sweep": None}, str(path))
    for dotted, _ in config.typed:
        if dotted.partition(".")[0] in parts and found.get(dotted, None) != config.get(dotted, None):
            raise ConfigError(f"{COMMAND_LINE}: --{dotted} must be left out, because the artifact sets it otherwise")
    found.artifact = str(path)
    check_samples(found)
    return found


def with_recognized_fields(config: Config) -> tuple[Config, list[str]]:
    """Return the experiment with ``data.field`` set for all stages of its sweep, and lines to print about each file.

    Each file of prompts is read once here, so that an invalid line is reported before models are loaded.
    """
    fields: dict[str, str] = {}
    lines: list[str] = []
    for stage in (None, *STAGES):
        if stage is not None and "prompts" not in (config.get(f"sweep.{stage}.data", None) or {}):
            continue
        staged = with_prompts_of(config, stage)
        if str(staged.get("data.prompts")["class_path"]).rpartition(".")[2] != "OwnPrompts":
            continue
        from specexp.data import OwnPrompts

        workload = staged.workload
        assert isinstance(workload.prompts, OwnPrompts)
        with prompt_errors(staged):
            rows = workload.rows()
        field = str(workload.prompts.field)
        fields[f"{'data' if stage is None else f'sweep.{stage}.data'}.field"] = field
        chat = ", chat messages up to the user's last one" if any(rows["chat"]) else ""
        also = ", each followed by its 'input' if there is one" if field == "instruction" else ""
        lines.append(f"{workload.prompts.path}: prompts are read from {field!r}{also}{chat}.")
        lines += workload.prompts.remarks()
    return config.with_overrides(fields, "recognized"), lines
