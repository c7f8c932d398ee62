"""Arguments that a configuration gives by reference: what stands in the file, and the value a constructor gets."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from specexp.config.errors import ConfigError
from specexp.config.families import find_part
from specexp.core.arguments import arguments_of
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
    from specexp.config.named_artifacts import local

    try:
        return value_of(reference.kind, local(given))
    except ArtifactError as why:
        raise ConfigError(f"{error}: {first_line(why)}") from why


def argument_for(kind: str, class_path: object, base: type) -> str | None:
    """The argument of a part that references of a kind go to; None where it has none, or there is no such part.

    Args:
        kind: of what is referred to.
        class_path: as configured.
        base: contract of the part's family.
    """
    if not isinstance(class_path, str):
        return None
    module, _, name = class_path.rpartition(".")
    try:
        component = getattr(import_module(module), name) if module else find_part(base, class_path)
    except (ImportError, AttributeError):
        return None  # which is said where the part is checked
    for name, argument in (arguments_of(component) or {} if component is not None else {}).items():
        found = argument.allowed.reference
        if found is not None and found.kind == kind:
            return name
    return None
