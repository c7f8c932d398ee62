"""The sweep of an experiment: its space against the compositions it leads to, and what is measured before it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from specexp.config.build import check_parts
from specexp.config.check import SourceOf, find_part
from specexp.config.config import Config, apply_overrides, has_key
from specexp.config.errors import ConfigError
from specexp.config.layers import Key
from specexp.config.sweep import METHOD, overrides_of
from specexp.config.sweep import Categorical
from specexp.config.sweep import Sweep
from specexp.core.checked import Reference, arguments_of, import_object
from specexp.core.messages import did_you_mean
from specexp.core.tree_builder import TreeBuilder

COUNTS = "acceptance_counts.json"
"""What a study's recording is called in its folder."""


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
