"""The search space of a study: the product of all keys of its space, its objectives and its limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from specexp.bench.metrics import constraints, objectives
from specexp.config import Config, apply_overrides, build_drafter
from specexp.config.check import Checker
from specexp.config.sweep import METHOD, Categorical, SpaceEntry, Suggesting, Sweep, overrides_of
from specexp.core.messages import did_you_mean
from specexp.models.sources import sources_of
from specexp.tracking.names import MODELLED, SPEEDUP

Applies = Callable[[str, Mapping[str, Any]], bool]
"""Whether a dotted key exists in the composition once the overrides chosen so far are applied."""

MAX_DRAFT_NODES = "max_draft_nodes"
"""Most nodes a tree may have: the one limit that is known before anything is measured."""


class Space:
    """All keys of a study, whole parts before the keys inside them.

    Attributes:
        entries: How the value of each key is drawn, in the order of drawing.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.entries: dict[str, SpaceEntry] = dict(
            sorted(sweep.space.items(), key=lambda item: item[0].count("."))
        )
        self._methods = sweep.methods

    def suggest(self, trial: Suggesting, applies: Applies) -> dict[str, Any]:
        """Draw one configuration: the overrides of every key that exists in what was chosen before it."""
        overrides: dict[str, Any] = {}
        for key, entry in self.entries.items():
            if key == METHOD or applies(key, overrides):
                overrides |= overrides_of(key, entry.suggest(trial, key, overrides))
        return overrides

    def params_of(self, overrides: Mapping[str, Any]) -> dict[str, Any] | None:
        """The study's parameters of a known configuration, or None where it lies outside the space."""
        params: dict[str, Any] = {}
        if METHOD in self.entries:
            fitting = [
                name
                for name, parts in self._methods.items()
                if all(overrides.get(part) == spec for part, spec in parts.items())
            ]
            if not fitting:
                return None
            params[METHOD] = name = max(fitting, key=lambda one: len(self._methods[one]))
            overrides = {key: value for key, value in overrides.items() if key not in self._methods[name]}
        try:
            flat = _flatten(overrides, self.entries.keys() - {METHOD})
            return params | {key: self.entries[key].label_of(value) for key, value in flat.items()}
        except LookupError:
            return None

    def beyond(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a known configuration that lie outside the range of their own key."""
        found = {}
        for key, value in overrides.items():
            try:
                # A whole part that is not among the choices is another method, not a value out of range.
                if key in self.entries and "." in key:
                    self.entries[key].label_of(value)
            except LookupError:
                found[key] = value
        return found

    def __str__(self) -> str:
        return "; ".join(f"{key}: {entry}" for key, entry in self.entries.items())


def _flatten(overrides: Mapping[str, Any], keys: set[str], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in overrides.items():
        key = f"{prefix}{name}"
        inside = isinstance(value, Mapping) and key not in keys
        flat |= _flatten(value, keys, f"{key}.") if inside else {key: value}
    return flat


def without_draft_methods(config: Config, sweep: Sweep) -> tuple[Sweep, tuple[str, ...]]:
    """Return a study without the methods that need a draft model where the pair has none, and their names.

    Raises:
        ConfigError: All methods need one.
    """
    methods = sweep.space.get(METHOD)
    has_draft = sources_of(config.get("pair.target"), config.get("pair.draft"))[1]
    if not isinstance(methods, Categorical) or has_draft:
        return sweep, ()
    out = tuple(choice["name"] for choice in methods.choices if _needs_draft(config, choice))
    kept = [choice for choice in methods.choices if choice["name"] not in out]
    if not kept:
        raise config.checker.error(
            ("sweep", "space"),
            ": every method needs a draft model and the pair has none: name one as pair.draft",
        )
    first = [known for known in sweep.enqueue if known.get(METHOD) not in out]
    return sweep.with_changes(
        space={**sweep.space, METHOD: methods.with_changes(choices=kept)}, enqueue=first
    ), out


def _needs_draft(config: Config, choice: Any) -> bool:
    drafter = build_drafter(apply_overrides(config, overrides_of(METHOD, choice), "sweep.space"))
    try:
        if drafter is not None:
            drafter.use_draft_model(None)
    except ValueError:
        return True
    return False


def check_goals(settings: Sweep, checker: Checker) -> None:
    """Raise if an objective or a constraint is not a metric.

    Raises:
        ConfigError: One is unknown, with the nearest name.
    """
    allowed: tuple[tuple[str, Iterable[str], Iterable[str]], ...] = (
        ("objectives", settings.objectives, objectives()),
        ("constraints", settings.constraints, (MAX_DRAFT_NODES, *constraints())),
    )
    for key, given, known in allowed:
        for name in given:
            if name not in known:
                raise checker.error(("sweep", key), f": unknown key {name!r}{did_you_mean(name, known)}")
    limit = settings.constraints.get(MAX_DRAFT_NODES, 0)
    if limit < 0:
        raise checker.error(("sweep", "constraints", MAX_DRAFT_NODES), f" must be >= 0, got {limit:g}")


def directions_of(settings: Sweep) -> dict[str, str]:
    """Which way each objective is optimised: as stated, or else the way that is better."""
    given = settings.objectives
    ways = {**objectives(), SPEEDUP: settings.direction}
    stated: Mapping[str, str | None] = given if isinstance(given, Mapping) else dict.fromkeys(given)
    return {name: way or ways[name] for name, way in stated.items()}


def figure_of(name: str, figures: Mapping[str, float]) -> float | None:
    """A metric's figure, measured or modelled; None where there is none."""
    return figures.get(name, figures.get(f"{MODELLED}{name}"))
