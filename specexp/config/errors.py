"""The errors of the configuration layer."""

from __future__ import annotations


class ConfigError(ValueError):
    """A mistake in a configuration: one sentence with file, key, value and what is allowed."""


class PlacedError(ValueError):
    """What a section refuses about one of its keys; whoever knows the file adds it.

    Args:
        key: steps to the value, from the section's own mapping on.
        sentence: goes on after the key: `` is 3; ...`` or ``: ...``.
    """

    def __init__(self, key: tuple[str, ...], sentence: str) -> None:
        super().__init__(f"{'.'.join(key)}{sentence}")
        self.key = key
        self.sentence = sentence
