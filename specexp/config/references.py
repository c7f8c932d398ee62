"""Arguments that a configuration gives by reference: what stands in the file, and the value a constructor gets."""

from __future__ import annotations

from typing import Any

from specexp.config.annotations import arguments_of
from specexp.config.errors import ConfigError
from specexp.core.messages import first_line
from specexp.core.references import Reference


def resolved(reference: Reference, given: str, error: ConfigError) -> Any:
    """The value that a reference stands for.

    Args:
        reference: marks the argument.
        given: path or ``wandb:`` reference.
        error: its text, file and key, begins the message.

    Raises:
        ConfigError: it cannot be read, or is of another kind.
    """
    from specexp.artifacts import ArtifactError, value_of
    from specexp.config.wandb_reference import local

    try:
        return value_of(reference.kind, local(given))
    except ArtifactError as why:
        raise ConfigError(f"{error}: {first_line(why)}") from why


def takes(component: type, kind: str) -> str | None:
    """The argument of a class that references of a kind go to; None where it has none."""
    for name, argument in (arguments_of(component) or {}).items():
        found = argument.allowed.reference
        if found is not None and found.kind == kind:
            return name
    return None
