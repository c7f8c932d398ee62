"""The errors of the configuration layer."""

from __future__ import annotations


class ConfigError(ValueError):
    """A mistake in a configuration: one sentence with file, key, value and what is allowed."""
