"""The search space of a study, and the checks of its objectives and constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from specexp.base.messages import did_you_mean
from specexp.bench.metrics import constraints, objectives
from specexp.config.check import Checker
from specexp.config.layers import ConfigError
from specexp.config.sweep import FUNCTION, METHOD, SpaceEntry, Sweep, overrides_of
from specexp.tracking.names import SPEEDUP

Applies = Callable[[str, Mapping[str, Any]], bool]
"""Returns whether a dotted key exists in the composition with the overrides chosen so far."""

MAX_DRAFT_NODES = "max_draft_nodes"
"""The maximum number of nodes in a tree: the only constraint that is checked before a candidate is measured."""


class Space:
    """All searched keys of a study, in the order in which they are drawn: whole parts before the keys inside them."""

    def __init__(self, sweep: Sweep) -> None:
        self.entries: dict[str, SpaceEntry] = dict(sorted(sweep.space.items(), key=lambda item: item[0].count(".")))
        self._methods = sweep.methods

    def suggest(self, trial: Any, applies: Applies) -> dict[str, Any]:
        """Draw overrides for every key that exists in the composition chosen so far."""
        overrides: dict[str, Any] = {}
        for key, entry in self.entries.items():
            if key in (METHOD, FUNCTION) or applies(key, overrides):
                overrides |= overrides_of(key, entry.suggest(trial, key, overrides))
        return overrides

    def params_of(self, overrides: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the study parameters that yield a known configuration, or None if it lies outside the space."""
        params: dict[str, Any] = {}
        if METHOD in self.entries:
            fitting = [
                name
                for name, parts in self._methods.items()
                if all(overrides.get(part) == spec for part, spec in parts.items())
            ]
            if not fitting:
                return None
            # Take the method with the most parts, because a method without a controller fits any controller.
            params[METHOD] = name = max(fitting, key=lambda one: len(self._methods[one]))
            overrides = {key: value for key, value in overrides.items() if key not in self._methods[name]}
        try:
            flat = _flatten(overrides, self.entries.keys() - {METHOD})
            return params | {key: self.entries[key].label_of(value) for key, value in flat.items()}
        except LookupError:
            return None

    def beyond(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a known configuration that lie outside the range of their key."""
        found = {}
        # A whole part that is not among the choices is a different method, not a value out of range.
        for key in (key for key in overrides if key in self.entries and "." in key):
            try:
                self.entries[key].label_of(overrides[key])
            except LookupError:
                found[key] = overrides[key]
        return found

    def __str__(self) -> str:
        return "; ".join(f"{key}: {entry}" for key, entry in self.entries.items())


def _flatten(overrides: Mapping[str, Any], keys: set[str], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in overrides.items():
        key = f"{prefix}{name}"
        nested = isinstance(value, Mapping) and key not in keys
        flat |= _flatten(value, keys, f"{key}.") if nested else {key: value}
    return flat


def check_goals(settings: Sweep, checker: Checker) -> None:
    """Raise ConfigError if an objective or constraint is not a metric, or if they or a pruner contradict others."""
    allowed: tuple[tuple[str, Iterable[str], Iterable[str]], ...] = (
        ("objectives", settings.objectives, objectives()),
        ("constraints", settings.constraints, (MAX_DRAFT_NODES, *constraints())),
    )
    for key, given, known in allowed:
        for name in given:
            if name not in known:
                at = ("sweep", key, name if isinstance(given, Mapping) else str(list(given).index(name)))
                where = f"{checker.source_of(at)}: sweep.{key}"
                raise ConfigError(f"{where}: unknown key {name!r}{did_you_mean(name, known)}")
    if settings.pruner is not None and list(settings.objectives) != [SPEEDUP]:
        why = " must be null unless speedup is the only objective: set it to null, or objectives to [speedup]"
        raise checker.error(("sweep", "pruner"), why)
    for name, least in settings.constraints.items():
        most = settings.constraints.get(f"max_{name.removeprefix('min_')}")
        if name.startswith("min_") and most is not None and least > most:
            why = f" must be <= max_{name.removeprefix('min_')}, got {least:g} and {most:g}"
            raise checker.error(("sweep", "constraints", name), why)
    limit = settings.constraints.get(MAX_DRAFT_NODES, 1)
    if limit < 1:
        raise checker.error(("sweep", "constraints", MAX_DRAFT_NODES), f" must be >= 1, got {limit:g}")


def directions_of(settings: Sweep) -> dict[str, str]:
    """Return the direction of each objective: as configured, or else the metric's own."""
    given = settings.objectives
    ways = {**objectives(), SPEEDUP: settings.direction}
    stated: Mapping[str, str | None] = given if isinstance(given, Mapping) else dict.fromkeys(given)
    return {name: way or ways[name] for name, way in stated.items()}
