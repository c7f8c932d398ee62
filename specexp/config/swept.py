"""The sweep of an experiment: its space against the compositions it leads to, and what is measured before it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specexp.config.composed import check_parts
from specexp.config.config import Config, apply_overrides, has_key
from specexp.config.errors import ConfigError
from specexp.config.layers import Key
from specexp.config.methods import METHOD, check_method, overrides_of, with_parts
from specexp.config.schema import SPACE_ENTRIES
from specexp.core.messages import did_you_mean

HITS = "hits.json"
"""What a study's recording is called in its folder."""


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
        at = ("sweep", "enqueue", str(number))

        def of_known(key: Key, at: Key = at) -> str:
            return f"{config.source_of((*at, *key))}: {'.'.join(at)}"

        try:
            overrides = with_parts(overrides, space)
        except LookupError as error:
            method = overrides[METHOD]
            hint = did_you_mean(str(method), error.args[0])
            raise ConfigError(
                f"{of_known((METHOD,))}: method is {method!r}, which sweep.space does not have{hint}"
            ) from error
        known_overrides = {
            key: _with_recorded_hits(value, sweep) for key, value in overrides.items() if key != "name"
        }
        composed = apply_overrides(config, known_overrides, of_known)
        if not _awaits_hits(composed, sweep):
            check_parts(composed)
    for stage in ("record_hits", "learn", "confirm"):
        if sweep[stage]:

            def of_stage(key: Key, stage: str = stage) -> str:
                return f"{config.source_of(('sweep', stage, *key))}: sweep.{stage}"

            apply_overrides(config, {"data": sweep[stage]["data"]}, of_stage)
    if sweep["record_hits"]:
        source = f"{config.source_of(('sweep', 'record_hits'))}: sweep.record_hits"
        check_parts(apply_overrides(config, {"builder": sweep["record_hits"]["builder"]}, source))


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
