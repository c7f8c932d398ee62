"""Load an experiment: its file composed, overridden and checked, its arms, and the stages of its sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any, get_args

from specexp.config.build import (
    build_engine,
    build_latency,
    build_workload,
    check_draft_latency,
    check_parts,
    is_multi_sequence,
    prompts_error,
)
from specexp.config.check import SourceOf, find_part
from specexp.config.config import Config, apply_overrides, check_key, compose_arm, has_key, is_replayed
from specexp.config.layers import ConfigError, Key, parse_overrides, read_layers
from specexp.config.schema import OVERRIDES, REFERENCE_KEYS
from specexp.config.sweep import METHOD, Categorical, Sweep, overrides_of
from specexp.core.checked import Reference, arguments_of, import_object
from specexp.core.contracts import TreeBuilder
from specexp.core.messages import did_you_mean


def check_replay(config: Config) -> None:
    """Raise if a recording cannot answer the experiment, or is not used by it. The recording is not read.

    Raises:
        ConfigError: one sentence.
    """
    if not is_replayed(config):
        if config.get("recording") is not None and config.get("what_if") is None:
            raise config.checker.error(
                ("recording",),
                f" is {config.get('recording')!r} and backend is live, which runs the models: set backend to replay, "
                "or leave recording out",
            )
        return
    where = f"{config.source_of(('backend',))}: backend is replay"
    if is_multi_sequence(config) or _searches_execution(config):
        raise ConfigError(
            f"{where}, and the experiment decodes several sequences for a prompt, which overlap on the device as no "
            "recording tells: leave execution and TaskItems out, or set backend to live"
        )
    if config.get("latency") is None:
        raise ConfigError(
            f"{where}, whose seconds are those of a latency profile, and there is no latency: measure one with python "
            "-m specexp.profile and name its artifact, or write one by hand as in configs/latency"
        )


def _searches_execution(config: Config) -> bool:
    sweep = config.get("sweep") or {"space": {}, "enqueue": []}
    keys = [*sweep["space"], *(key for known in sweep["enqueue"] for key in known)]
    return any(key.partition(".")[0] == "execution" for key in keys)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read, compose, override and check a file; torch is not imported.

    Args:
        path: YAML; ``compose:`` names files to lay under it.
        overrides: ``--dotted.key value`` or ``--dotted.key=value``, later ones win.

    Raises:
        ConfigError: one sentence with file, key, value and what is allowed.

    Example:
        >>> load_config("experiments/tree_shape.yaml", ["--generation.seed", "1"])  # doctest: +SKIP
    """
    config = Config(read_layers(path, overrides), str(path))
    config.typed = parse_overrides(overrides)
    check_replay(config)
    varied = (config.get("sweep") or {}).get("space", {})
    if not varied.keys() & {"builder", "drafter", METHOD}:
        check_parts(config)
    check_arms(config)
    check_sweep(config)
    return config


STAGES = ("confirm", "count_acceptances", "learn")
"""Stages of a sweep that may have prompts of their own."""


def with_prompts_of(config: Config, stage: str | None) -> Config:
    """An experiment with the prompts of its search, or of a stage of its sweep.

    Unless a stage names ``prompts`` or an ``offset`` of its own, it takes those of the same set that come next: after
    the search's the confirmation's, after these the others'.

    Args:
        config: The experiment.
        stage: One of :data:`STAGES`; None for the search.

    Raises:
        ConfigError: The search takes all prompts, so that none are left.
    """
    if stage is None:
        return config
    own = dict(config.get(f"sweep.{stage}.data"))
    if "prompts" in own:
        own.setdefault("field", None)  # the search's may be another file's
    if "prompts" not in own and "offset" not in own:
        own["offset"] = _end_of(config, None if stage == "confirm" else "confirm")
    return apply_overrides(config, {"data": own}, f"sweep.{stage}.data")


def _end_of(config: Config, stage: str | None) -> int:
    """Where the prompts of the search end, or of a stage that follows it."""
    search: dict[str, Any] = config.get("data")
    if search["max_prompts"] is None:
        raise ConfigError(
            f"{config.file}: data.max_prompts is null, so the search takes all prompts and leaves none for "
            "sweep.confirm and sweep.count_acceptances: set it, or give them prompts of their own"
        )
    end: int = search["offset"] + search["max_prompts"]
    follows = config.get(f"sweep.{stage}.data", None) if stage is not None else None
    if follows is None or "prompts" in follows or "offset" in follows:
        return end
    return end + int(follows.get("max_prompts") or search["max_prompts"])


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


def check_arms(config: Config) -> None:
    """Compose every arm."""
    for name, arm in config.get("arms").items():
        where = f"{config.source_of(('arms', name))}: arms.{name}"
        if not name.strip() or not str(arm.get("title") or name).strip():
            raise config.checker.error(("arms",), f" has one called {name!r}; give it a name")
        reference = arm.get("reference")
        for key in arm:
            if reference is not None and (
                key in OVERRIDES
                or key in ("grid", "preload")
                or (key in _REFERENCE and key not in REFERENCE_KEYS[reference])
            ):
                allowed = ", ".join(("title", *REFERENCE_KEYS[reference]))
                raise ConfigError(
                    f"{config.source_of(('arms', name, key))}: arms.{name}.{key} does not go with reference "
                    f"{reference!r}, which takes {allowed}"
                )
            if reference is None and key in _REFERENCE:
                raise ConfigError(
                    f"{config.source_of(('arms', name, key))}: arms.{name}.{key} needs a reference, one of "
                    f"{', '.join(REFERENCE_KEYS)}"
                )
        if reference is not None:
            if reference == "hf-assisted":
                check_draft_latency(config, build_latency(config), f"arm {name!r}")
            continue
        with _inside(where, f"arms.{name}"):
            composed = compose_arm(config, name)
            _preload(composed, name, arm)
            for key, values in (arm.get("grid") or {}).items():
                check_key(composed, key, f"{where}.grid")
                if not values:
                    raise ConfigError(f"{where}.grid.{key} is an empty list; at least one value is needed")
                for value in values:
                    point = compose_arm(config, name, {key: value})
                check_parts(point)
                build_engine(point)
            if not arm.get("grid"):
                check_parts(composed)
                build_engine(composed)


@contextmanager
def _inside(where: str, arm: str) -> Iterator[None]:
    """Name the arm in an error that comes from something it did not set itself."""
    try:
        yield
    except ConfigError as error:
        if f": {arm}" in str(error):
            raise
        raise ConfigError(f"{where}: {str(error).partition(': ')[2]}") from error


def _label(value: Any) -> str:
    """A value of a grid in a title; in a list ``1 x 7`` is seven times 1."""
    if isinstance(value, Mapping):
        return str(value.get("name") or value.get("class_path", value))
    if not isinstance(value, list):
        return str(value)
    runs = ((str(entry), len(list(run))) for entry, run in groupby(value))
    return f"[{', '.join(f'{entry} x {count}' if count > 2 else ', '.join([entry] * count) for entry, count in runs)}]"


COUNTS = "acceptance_counts.json"
"""Name of a study's recording in its folder."""


def build_sweep(config: Config) -> Sweep | None:
    """The ``sweep:`` section; None where the file has none."""
    sweep: Sweep | None = config.checker.build(config.get("sweep"), Sweep, ("sweep",))
    return sweep


def check_sweep(config: Config) -> None:
    """Check the search space against the compositions it leads to, and what is measured before it."""
    sweep = build_sweep(config)
    if sweep is None:
        return
    contexts = [config]
    for key in sorted(key for key in sweep.space if "." not in key):
        contexts = [_try(outer, key, value, sweep) for outer in contexts for value in _choices(sweep, key)]
    for key, entry in sweep.space.items():
        if "." not in key:
            continue
        fitting = [context for context in contexts if has_key(context, key)]
        if not fitting:
            names = {name for context in contexts for name in context.keys()}  # noqa: SIM118
            raise ConfigError(
                f"{config.source_of(('sweep', 'space', key))}: sweep.space: {key!r} does not exist in any composition "
                f"of this space{did_you_mean(key, names)}"
            )
        choices = isinstance(entry, Categorical)
        for name in ("choices",) if choices else ("low", "high"):
            source = config.source_of(("sweep", "space", key, name)) + f": sweep.space.{key}"
            for value in _choices(sweep, key) if choices else (getattr(entry, name),):
                for context in fitting:
                    apply_overrides(context, {key: value}, source)
    for number, known in enumerate(sweep.known):
        overrides = {key: _with_own_counts(value, sweep) for key, value in known.overrides.items()}
        composed = apply_overrides(config, overrides, _source(config, ("sweep", "enqueue", str(number))))
        if not awaits_counts(composed, sweep):
            check_parts(composed)
    for stage in ("count_acceptances", "learn", "confirm"):
        found = getattr(sweep, stage)
        if found is not None:
            apply_overrides(config, {"data": found.data}, _source(config, ("sweep", stage)))
    if sweep.count_acceptances is not None:
        source = f"{config.source_of(('sweep', 'count_acceptances'))}: sweep.count_acceptances"
        check_parts(apply_overrides(config, {"builder": sweep.count_acceptances.builder}, source))


def _choices(sweep: Sweep, key: str) -> list[Any]:
    entry = sweep.space[key]
    assert isinstance(entry, Categorical)
    return entry.choices


def _source(config: Config, at: Key) -> SourceOf:
    """Whom errors about overrides name that stand at a place of the file."""
    return lambda key: f"{config.source_of((*at, *key))}: {'.'.join(at)}"


def _try(config: Config, key: str, choice: Any, sweep: Sweep) -> Config:
    """The composition with a choice of the space; the parts of a method must go together."""
    source = f"{config.source_of(('sweep', 'space', key))}: sweep.space.{key}"
    if key == METHOD:
        source = f"{source}: {choice['name']}"
    chosen = {part: _with_own_counts(value, sweep) for part, value in overrides_of(key, choice).items()}
    composed = apply_overrides(config, chosen, source)
    if key == METHOD and not awaits_counts(composed, sweep):
        check_parts(composed)
    return composed


def with_counts(value: Any, counts: str) -> Any:
    """A builder that is fitted to acceptance counts and names none, or the study's by their bare name, gets ``counts``.

    Args:
        value: The specification of a builder; anything else stays as it is.
        counts: file that the study records first.
    """
    given = value.get("class_path") if isinstance(value, Mapping) else None
    argument = _argument_for("acceptance-counts", given, TreeBuilder)
    if argument is None:
        return value
    arguments = value.get("init_args") or {}
    named = arguments.get(argument, COUNTS)
    return {**value, "init_args": {**arguments, argument: counts if named == COUNTS else named}}


def _with_own_counts(value: Any, sweep: Sweep) -> Any:
    return with_counts(value, COUNTS) if sweep.count_acceptances is not None else value


def awaits_counts(config: Config, sweep: Sweep) -> bool:
    """Whether a builder is fitted to counts that the study makes, and they are not there yet."""
    counts = config.get("builder.init_args.acceptance_counts", None)
    return sweep.count_acceptances is not None and counts is not None and not Path(counts).is_file()


def _argument_for(kind: str, class_path: object, base: type) -> str | None:
    """The argument of a part that references of a kind go to; None where it has none, or there is no such part."""
    if not isinstance(class_path, str):
        return None
    try:
        component = import_object(class_path) if "." in class_path else find_part(base, class_path)
    except (ImportError, AttributeError):
        return None  # the check of the part reports it
    known = arguments_of(component) or {} if component is not None else {}
    return next((name for name, one in known.items() if kind in _references_in(one.annotation)), None)


def _references_in(annotation: Any) -> list[str]:
    own = [one.kind for one in getattr(annotation, "__metadata__", ()) if isinstance(one, Reference)]
    return own + [kind for inner in get_args(annotation) for kind in _references_in(inner)]


def with_artifact(config: Config) -> Config:
    """The experiment with the parts of its ``artifact``; of several arms, and of a search, nothing is left.

    What the artifact had learned is not taken along: its parts begin as the file's own would.

    Args:
        config: The experiment; as it is where it names no artifact.

    Raises:
        ConfigError: The artifact cannot be read, holds no parts, or decodes plainly.
    """
    path = config.get("artifact")
    if path is None:
        return config
    from specexp.artifacts import ArtifactError
    from specexp.artifacts.parts import FAMILIES
    from specexp.config.artifacts import load_artifact

    where = f"{config.source_of(('artifact',))}: artifact"
    trust = config.get("trust")
    try:
        artifact = load_artifact(path, [trust] if isinstance(trust, str) else trust)
    except ArtifactError as error:
        raise ConfigError(f"{where}: {error}") from error
    if artifact.plain:
        raise ConfigError(
            f"{where}: {path} decodes plainly, so that there is nothing to compare or prove; a study's best-tree drafts"
        )
    specs = artifact.specs()
    if "drafter" not in specs or "builder" not in specs:
        raise ConfigError(
            f"{where}: {path} is of kind {artifact.kind!r} and composes no decoder; one with a drafter and a builder "
            "is expected"
        )
    parts: dict[str, Any] = {family: specs[family] for family in FAMILIES if family in specs}
    found = apply_overrides(config, {**parts, "artifact": None, "sweep": None, "arms": {}}, str(path))
    found.artifact = str(path)
    return found


def with_recognised_fields(config: Config) -> tuple[Config, list[str]]:
    """Return an experiment with ``data.field`` set for all stages of its sweep, and a line to print for each file.

    Each file of prompts is read once, so that a wrong line is reported before models are loaded.

    Raises:
        ConfigError: a file cannot be read, or its field is not recognised.
    """
    fields: dict[str, str] = {}
    said: list[str] = []
    for stage in (None, *STAGES):
        if stage is not None and "prompts" not in (config.get(f"sweep.{stage}.data", None) or {}):
            continue
        staged = with_prompts_of(config, stage)
        if str(staged.get("data.prompts")["class_path"]).rpartition(".")[2] != "OwnPrompts":
            continue
        from specexp.data import OwnPrompts, PromptSetError

        workload = build_workload(staged)
        assert isinstance(workload.prompts, OwnPrompts)
        try:
            rows = workload.rows()
        except PromptSetError as error:
            raise prompts_error(staged, error) from error
        field = str(workload.prompts.field)
        fields[f"{'data' if stage is None else f'sweep.{stage}.data'}.field"] = field
        chat = ", chat messages up to the user's last one" if any(rows["chat"]) else ""
        said.append(f"{workload.prompts.path}: prompts are read from {field!r}{chat}.")
        said += workload.prompts.remarks()
    return apply_overrides(config, fields, "recognised"), said
