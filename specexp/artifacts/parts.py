"""Parts of a decoder from their ``class_path`` and ``init_args``: ``parts.json`` of an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specexp.artifacts.error import ArtifactError
from specexp.config import ConfigError
from specexp.config.annotations import arguments_of
from specexp.config.check import Checker
from specexp.config.layers import PARTS as FAMILIES
from specexp.config.schema import Experiment
from specexp.core.messages import did_you_mean, type_and_line

PARTS = "parts.json"


def check_parts(content: Any, where: str) -> dict[str, Any]:
    """The content of ``parts.json``: null or ``{"class_path": ..., "init_args": {...}}`` for each family.

    Raises:
        ArtifactError: it is not that; ``where`` names the file.
    """
    if not isinstance(content, dict):
        raise ArtifactError(
            f"{where} is no object; one with drafter, builder, verifier and controller is expected"
        )
    for family, spec in content.items():
        if family not in FAMILIES:
            raise ArtifactError(f"{where} has the unknown part {family!r}{did_you_mean(family, FAMILIES)}")
        if spec is None:
            continue
        if not isinstance(spec, dict) or not isinstance(spec.get("class_path"), str):
            raise ArtifactError(f"{where}: {family}.class_path is missing; the name of a class is expected")
        if not isinstance(spec.get("init_args", {}), dict):
            raise ArtifactError(f"{where}: {family}.init_args is no object; arguments by name are expected")
        if unknown := sorted(spec.keys() - {"class_path", "init_args"}):
            raise ArtifactError(f"{where}: {family} has the unknown field {unknown[0]!r}")
    return content


def instantiate(family: str, spec: Mapping[str, Any], where: str) -> Any:
    """The part that a specification describes.

    Only a class of the family is ever called: any other ``class_path`` is refused.

    Args:
        family: ``drafter``, ``builder``, ``verifier`` or ``controller``.
        spec: ``class_path``, short for our own parts, and ``init_args``.
        where: file, for messages.

    Raises:
        ArtifactError: the class does not exist, is of another family, or refuses its arguments.
    """
    checker = Checker(lambda key: where)
    annotation = (arguments_of(Experiment) or {})[family].annotation
    try:
        return checker.build(checker.value(spec, annotation, (family,)), annotation, (family,))
    except ConfigError as error:
        raise ArtifactError(str(error)) from error
    except (Exception, SystemExit) as error:  # of a module that is imported, or a constructor
        raise ArtifactError(f"{where}: {family} cannot be made ({type_and_line(error)})") from error
