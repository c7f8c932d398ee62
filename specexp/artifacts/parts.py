"""Parts of a decoder as an artifact records them: ``parts.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specexp.artifacts.error import ArtifactError
from specexp.core.messages import did_you_mean

PARTS = "parts.json"
FAMILIES = ("drafter", "builder", "verifier", "controller")

Spec = Mapping[str, Any]
"""``{"class_path": ..., "init_args": {...}}``: a part, or whatever else is made by a constructor."""


def checked_specs(content: Any, where: str) -> dict[str, Spec]:
    """The recorded parts by family, those that are null left out; no class is looked for.

    Args:
        content: what ``parts.json`` holds.
        where: folder and file, for messages.

    Raises:
        ArtifactError: it is not null or ``{"class_path": ..., "init_args": {...}}`` for each family.
    """
    if not isinstance(content, dict):
        raise ArtifactError(f"{where} is no object; one with {', '.join(FAMILIES)} is expected")
    for family, spec in content.items():
        if family not in FAMILIES:
            raise ArtifactError(f"{where} has the unknown part {family!r}{did_you_mean(family, FAMILIES)}")
        if spec is not None:
            check_spec(spec, where, f"{family}.")
    return {family: spec for family, spec in content.items() if spec is not None}


def check_spec(spec: Any, where: str, key: str = "") -> None:
    """Refuse what is no ``class_path`` with ``init_args``.

    Args:
        spec: the value, as JSON holds it.
        where: folder and file, for messages.
        key: where the specification stands in it, with a dot; empty where it is all of the file.

    Raises:
        ArtifactError: one sentence with the key.
    """
    if not isinstance(spec, dict) or not isinstance(spec.get("class_path"), str):
        raise ArtifactError(f"{where}: {key}class_path is missing; the name of a class is expected")
    if not isinstance(spec.get("init_args", {}), dict):
        raise ArtifactError(f"{where}: {key}init_args is no object; arguments by name are expected")
    if unknown := sorted(spec.keys() - {"class_path", "init_args"}):
        raise ArtifactError(f"{where} has the unknown field {key + unknown[0]!r}")


def init_args_of(spec: Spec | None, dotted: str) -> dict[str, Any] | None:
    """Arguments of a specification of a class; None where it is of another one.

    Args:
        spec: specification of any part.
        dotted: the class, by the module that defines it; its short name and its family's name for it mean it too.

    Example:
        >>> init_args_of({"class_path": "Chain"}, "specexp.builders.static_tree.Chain")
        {}
    """
    module, _, name = dotted.rpartition(".")
    package = module.rpartition(".")[0]
    if spec is None or spec.get("class_path") not in (name, f"{package}.{name}", dotted):
        return None
    return dict(spec.get("init_args") or {})
