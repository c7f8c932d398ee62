"""The product of all keys of a search space: whole configurations drawn from it, and known ones found in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specexp.config.methods import METHOD, overrides_of
from specexp.config.search_space import SpaceEntry, Suggesting
from specexp.config.sweep import Sweep

Applies = Callable[[str, Mapping[str, Any]], bool]
"""Whether a dotted key exists in the composition once the overrides chosen so far are applied."""


class Space:
    """All keys of a study, whole parts before the keys inside them.

    Args:
        sweep: The study.

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
        keys = self.entries.keys() - {METHOD}
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
            flat = _flatten(overrides, keys)
            return params | {key: self.entries[key].label_of(value) for key, value in flat.items()}
        except LookupError:
            return None

    def beyond(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a known configuration that lie outside the range of their own key."""
        found = {}
        for key, value in overrides.items():
            try:
                if (
                    key in self.entries and "." in key
                ):  # another part is another method, not a value out of range
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
        if isinstance(value, Mapping) and key not in keys:
            flat.update(_flatten(value, keys, f"{key}."))
        else:
            flat[key] = value
    return flat
